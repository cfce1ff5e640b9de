package image

import (
	"context"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

// basePackages are what the base template has beside Debian's essential ones:
// what agents use in almost every session, and little more.
var basePackages = []string{
	"bash", "ca-certificates", "curl", "git", "iproute2", "less", "procps", "python3", "sudo",
}

// BaseSource is the source of the default template on this machine: its own
// distribution, from its own mirror, with the base packages.
func BaseSource() (Source, error) {
	suite, err := osRelease(osReleaseFile, "VERSION_CODENAME")
	if err != nil || !suitePattern.MatchString(suite) {
		return Source{}, sandbox.Errorf(sandbox.Unsupported, "base template", "cannot be bootstrapped: this machine is no Debian or Ubuntu").
			WithNext("name an image for it, such as debian:12")
	}
	return Source{Kind: Bootstrap, Suite: suite, Packages: basePackages}, nil
}

// Base makes the default template's layers. It takes about a minute the first
// time and next to nothing when they are there.
func Base(ctx context.Context, store *layers.Store, o Options) (Result, error) {
	src, err := BaseSource()
	if err != nil {
		return Result{}, err
	}
	r, err := Import(ctx, store, src, o)
	if err != nil {
		return Result{}, err
	}
	r.Config.User, r.Config.Workdir = UserName, UserHome
	return r, nil
}
