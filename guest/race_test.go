//go:build race

package guest_test

// The guest under test is built as the test itself is.
const raceEnabled = true
