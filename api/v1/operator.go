package v1

import (
	"net/http"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

func (s *server) listKeys(w http.ResponseWriter, c *call) error {
	keys, err := s.Keys.List(c.Context(), c.space)
	if err != nil {
		return err
	}
	if keys == nil {
		keys = []Key{}
	}
	reply(w, http.StatusOK, KeyList{Keys: keys})
	return nil
}

func (s *server) createKey(w http.ResponseWriter, c *call) error {
	var req KeyRequest
	if err := decode(c.Request, &req); err != nil {
		return err
	}
	if strings.TrimSpace(req.Name) == "" || len(req.Name) > 100 {
		return sandbox.Errorf(sandbox.InvalidRequest, "field name", "must have 1 to 100 characters").WithNext("say what the key is for")
	}
	key, err := s.Keys.Create(c.Context(), c.space, req.Name)
	if err != nil {
		return err
	}
	reply(w, http.StatusCreated, key)
	return nil
}

func (s *server) deleteKey(w http.ResponseWriter, c *call) error {
	if err := s.Keys.Delete(c.Context(), c.space, c.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) doctor(repair bool) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		var findings []sandbox.Finding
		if s.Checks != nil {
			findings = s.Checks(c.Context())
		}
		if d, ok := s.Backend.(sandbox.Doctor); ok {
			check := d.Check
			if repair {
				check = d.Repair
			}
			found, err := check(c.Context())
			if err != nil {
				return err
			}
			findings = append(findings, found...)
		}
		reply(w, http.StatusOK, FindingList{Findings: fromFindings(findings)})
		return nil
	}
}
