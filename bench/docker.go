package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/client"
)

const dockerName = "docker"

// Docker is the peer: its command line, as people use it, and an image with the
// very files of our template.
type Docker struct{ Image string }

// ErrNoDocker: there is no Docker engine to measure beside us.
var ErrNoDocker = errors.New("docker does not answer")

// OpenDocker finds Docker (by DOCKER_HOST or the default socket) and makes sure
// that it has an image of the template's files. It gets them out of a sandbox, so
// no registry is needed.
func OpenDocker(ctx context.Context, c *client.Client, template string) (*Docker, error) {
	d := &Docker{}
	if _, err := d.command(ctx, "version", "--format", "{{.Server.Version}}"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDocker, err)
	}
	t, err := c.Template(ctx, template)
	if err != nil {
		return nil, err
	}
	d.Image = "holdfast-bench:" + t.ID
	if _, err := d.command(ctx, "image", "inspect", d.Image); err == nil {
		return d, nil
	}
	b := &run{Options: Options{Template: template}, c: c}
	sb, err := b.create(ctx, true)
	if err != nil {
		return nil, err
	}
	defer b.remove(ctx, sb)
	pack := sb.Command(ctx, "tar", "-C", "/", "--one-file-system", "--exclude=./proc/*", "--exclude=./sys/*",
		"--exclude=./dev/*", "--exclude=./.holdfast", "-c", ".")
	pack.User = "root"
	load := exec.CommandContext(ctx, "docker", "import", "-", d.Image) //nolint:gosec // the image's name is ours
	in, err := load.StdinPipe()
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	load.Stdout, load.Stderr = &said, &said
	if err := load.Start(); err != nil {
		return nil, err
	}
	pack.Stdout = in
	packErr := pack.Run()
	_ = in.Close() // docker says below what it made of it
	loadErr := load.Wait()
	if err := errors.Join(packErr, loadErr); err != nil {
		return nil, fmt.Errorf("bring template %s into docker: %w: %s", template, err, strings.TrimSpace(said.String()))
	}
	return d, nil
}

// command runs the docker command line and gives what it printed.
func (d *Docker) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// start runs an idle container and gives its id.
func (d *Docker) start(ctx context.Context) (string, error) {
	return d.command(ctx, "run", "--detach", "--init", d.Image, "/bin/sleep", "3600")
}

func (d *Docker) remove(ctx context.Context, containers ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	args := []string{"rm", "--force"}
	for _, c := range containers {
		if c != "" {
			args = append(args, c)
		}
	}
	if len(args) > 2 {
		_, _ = d.command(ctx, args...) // a container that stays ends by itself in an hour
	}
}

func (d *Docker) removeImage(ctx context.Context, image string) error {
	_, err := d.command(ctx, "image", "rm", image)
	return err
}
