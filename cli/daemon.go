package cli

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/daemon"
)

func (a *app) daemon() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run the daemon in the foreground",
		Long: `Run the daemon in the foreground, logging to standard error, until SIGTERM or
SIGINT. "holdfast up" runs it in the background; this is for a service manager:

  [Service]
  ExecStart=/usr/local/bin/holdfast daemon
  KillMode=process
  Restart=always
  Delegate=yes

KillMode=process matters: sandboxes go on while the daemon is restarted.`,
		Args:   cobra.NoArgs,
		Hidden: true,
	}
	keyFlags(cmd.Flags(), false)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.configure(cmd)
		if err != nil {
			return err
		}
		return daemon.Run(cmd.Context(), cfg, daemon.Options{Version: version, GVisor: gvisorVersion(), Logger: logger(cfg)})
	}
	complete(a, cmd, nil, nil)
	return cmd
}

func logger(cfg *config.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		level = slog.LevelInfo // the configuration was checked
	}
	o := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}
