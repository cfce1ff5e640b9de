// Package keys holds what opens a node: its users' API keys, stored as hashes;
// the machine's own key, which the command line on the same machine uses; and
// the seed from which every sandbox's tokens are derived.
//
// Files, both 0600, in the folder given to Open and OpenSeed:
//
//	seed    32 random bytes in hex; tokens are HMACs under it
//	local   the machine's own API key, in clear
package keys
