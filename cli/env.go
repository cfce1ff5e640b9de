package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/sandbox"
)

// variable is one export.
type variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func (a *app) environ() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print what SDKs need to know, for the shell",
		Long: `Print exports of the variables that the E2B and Cube Sandbox SDKs read, so that
they talk to this daemon. On the daemon's machine the key is the machine's own.`,
		Example: `  eval "$(holdfast env)"
  holdfast env --json`,
		Args: cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print a JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.configure(cmd)
		if err != nil {
			return err
		}
		c, err := dial(cfg)
		if err != nil {
			return err
		}
		vars, err := variables(cmd.Context(), c, cfg)
		if err != nil {
			return err
		}
		if *asJSON {
			object := map[string]string{}
			for _, v := range vars {
				object[v.Name] = v.Value
			}
			return a.printJSON(object)
		}
		for _, v := range vars {
			fmt.Fprintf(a.out, "export %s=%s\n", v.Name, shellQuote(v.Value))
		}
		return nil
	}
	complete(a, cmd, nil, nil)
	return cmd
}

func variables(ctx context.Context, c *client.Client, cfg *config.Config) ([]variable, error) {
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	key, base := st.LocalKey, (&config.Config{Listen: st.Listen}).ListenURL()
	if c.Remote() {
		key, base = cfg.APIKey, strings.TrimRight(cfg.URL, "/")
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("address of the daemon: %w", err)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	vars := []variable{{"E2B_API_KEY", key}, {"E2B_API_URL", base}, {"E2B_SANDBOX_URL", base}}
	domain := "localhost"
	if st.Domain != "" {
		domain = st.Domain
		vars = append(vars, variable{"E2B_DOMAIN", st.Domain})
	}
	return append(vars,
		variable{"CUBE_API_KEY", key}, variable{"CUBE_API_URL", base}, variable{"CUBE_TEMPLATE_ID", sandbox.DefaultTemplate},
		variable{"CUBE_PROXY_NODE_IP", u.Hostname()}, variable{"CUBE_PROXY_PORT_HTTP", port},
		variable{"CUBE_PROXY_SCHEME", u.Scheme}, variable{"CUBE_SANDBOX_DOMAIN", domain}), nil
}

// shellQuote makes s one word for a POSIX shell.
func shellQuote(s string) string {
	plain := s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:@%+=,", r))
	}) < 0
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
