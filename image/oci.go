package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

// platform is what this machine can run.
func platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

func importRegistry(ctx context.Context, store *layers.Store, src Source, o Options) (Result, error) {
	var named []name.Option
	if o.PlainHTTP {
		named = append(named, name.Insecure)
	}
	ref, err := name.ParseReference(src.Ref, named...)
	if err != nil {
		return Result{}, invalid(src.Ref, "is not an image reference (%w)", err).WithNext(forms)
	}
	auth := o.Auth
	if auth == nil {
		auth = authn.DefaultKeychain
	}
	o.step("pull", "resolve %s", ref)
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithPlatform(platform()), remote.WithAuthFromKeychain(auth))
	if err != nil {
		return Result{}, registryError(src, err)
	}
	r, err := importImage(ctx, store, src, img, o)
	if err != nil {
		return Result{}, registryError(src, err)
	}
	return r, nil
}

// registryError says what a registry's refusal means for the person who asked.
func registryError(src Source, err error) error {
	var classified *sandbox.Error
	if errors.As(err, &classified) || machineFault(err) {
		return err
	}
	thing := fmt.Sprintf("image %q", src.Ref)
	var answer *transport.Error
	if !errors.As(err, &answer) {
		if strings.Contains(err.Error(), "no child with platform") { // go-containerregistry has no type for it
			return invalid(src.Ref, "is not made for %s: %w", platform(), err)
		}
		if kind := sandbox.KindOf(err); kind == sandbox.Timeout {
			return err
		}
		return sandbox.Errorf(sandbox.Unavailable, thing, "cannot be pulled: %w", err).
			WithNext("check that the registry can be reached from this machine, or import a saved image or debootstrap://SUITE")
	}
	switch answer.StatusCode {
	case http.StatusNotFound:
		return sandbox.Errorf(sandbox.NotFound, thing, "is not in its registry: %w", err).WithNext("check the name and the tag")
	case http.StatusUnauthorized, http.StatusForbidden:
		return sandbox.Errorf(sandbox.Authentication, thing, "may not be pulled, or does not exist: %w", err).
			WithNext("log in with docker login, or check the name")
	}
	return sandbox.Errorf(sandbox.Unavailable, thing, "cannot be pulled: %w", err).WithNext("try again later")
}

// importImage unpacks the layers of an image that the store does not have. A
// layer's key is its chain id, which stands for it and all below it.
func importImage(ctx context.Context, store *layers.Store, src Source, img v1.Image, o Options) (Result, error) {
	digest, err := img.Digest()
	if err != nil {
		return Result{}, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return Result{}, err
	}
	if want := platform(); config.OS != want.OS || config.Architecture != want.Architecture {
		return Result{}, invalid(src.String(), "is made for %s/%s, this machine is %s", config.OS, config.Architecture, want)
	}
	list, err := img.Layers()
	if err != nil {
		return Result{}, err
	}
	if len(list) == 0 {
		return Result{}, invalid(src.String(), "has no layers")
	}
	if len(list) > layers.MaxDepth/2 {
		return Result{}, invalid(src.String(), "has %d layers, at most %d can be used; squash it", len(list), layers.MaxDepth/2)
	}
	r := Result{Digest: digest.String(), Config: configOf(config.Config)}
	chain := ""
	for i, l := range list {
		diff, err := l.DiffID()
		if err != nil {
			return Result{}, err
		}
		chain = chainID(chain, diff.String())
		id, err := importLayer(ctx, store, l, layers.ExtractOptions{Digest: "oci:" + chain, DiffID: diff.String(), Below: r.Layers},
			o, fmt.Sprintf("layer %d of %d", i+1, len(list)))
		if err != nil {
			return Result{}, err
		}
		r.Layers = append(r.Layers, id)
	}
	return r, nil
}

func importLayer(ctx context.Context, store *layers.Store, l v1.Layer, x layers.ExtractOptions, o Options, detail string) (string, error) {
	if have, ok := store.Find(x.Digest); ok {
		o.step("unpack", "%s is there already", detail)
		return have.ID, nil
	}
	size, err := l.Size()
	if err != nil {
		return "", err
	}
	r, err := l.Compressed()
	if err != nil {
		return "", err
	}
	defer r.Close()
	made, err := store.Extract(ctx, o.counted("unpack", detail, r, size), x)
	if err != nil {
		return "", fmt.Errorf("%s: %w", detail, err)
	}
	return made.ID, nil
}

// chainID stands for a layer on top of those below it, as the OCI image
// specification defines it.
func chainID(below, diffID string) string {
	if below == "" {
		return diffID
	}
	return sha256Hex(below + " " + diffID)
}

func configOf(c v1.Config) Config {
	return Config{
		Env: envMap(c.Env), User: c.User, Workdir: c.WorkingDir,
		Entrypoint: c.Entrypoint, Cmd: c.Cmd, Labels: c.Labels,
	}
}
