package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/account"
	pb "github.com/holdfast-run/holdfast/guest/proto/filesystempb"
)

// Stat implements the service.
func (s *Service) Stat(ctx context.Context, req *pb.StatRequest) (*pb.StatResponse, error) {
	u := account.FromContext(ctx)
	path, err := s.resolve(u, req.GetPath())
	if err != nil {
		return nil, err
	}
	entry, err := s.statAs(u, path)
	if err != nil {
		return nil, err
	}
	return &pb.StatResponse{Entry: entry}, nil
}

func (s *Service) statAs(u account.User, path string) (entry *pb.EntryInfo, err error) {
	err = u.Do(func() (err error) {
		entry, err = s.lstat(path)
		return err
	})
	if err != nil {
		return nil, classify(path, err)
	}
	return entry, nil
}

// MakeDir implements the service.
func (s *Service) MakeDir(ctx context.Context, req *pb.MakeDirRequest) (*pb.MakeDirResponse, error) {
	u := account.FromContext(ctx)
	path, err := s.resolve(u, req.GetPath())
	if err != nil {
		return nil, err
	}
	err = u.Do(func() error {
		fi, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case fi.IsDir():
			return connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", path))
		}
		return invalid("path already exists but it is not a directory: %s", path)
	})
	if err == nil {
		err = makeDirs(u, path)
	}
	if err != nil {
		return nil, classify(path, err)
	}
	entry, err := s.statAs(u, path)
	if err != nil {
		return nil, err
	}
	return &pb.MakeDirResponse{Entry: entry}, nil
}

// Move implements the service. What is at the destination is replaced, as rename(2) does.
func (s *Service) Move(ctx context.Context, req *pb.MoveRequest) (*pb.MoveResponse, error) {
	u := account.FromContext(ctx)
	source, err := s.resolve(u, req.GetSource())
	if err != nil {
		return nil, err
	}
	destination, err := s.resolve(u, req.GetDestination())
	if err != nil {
		return nil, err
	}
	if _, err := s.statAs(u, source); err != nil {
		return nil, err
	}
	if err := makeDirs(u, filepath.Dir(destination)); err != nil {
		return nil, classify(filepath.Dir(destination), err)
	}
	if err := u.Do(func() error { return rename(source, destination) }); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, classify(destination, err)
		}
		return nil, classify(source, err)
	}
	entry, err := s.statAs(u, destination)
	if err != nil {
		return nil, err
	}
	return &pb.MoveResponse{Entry: entry}, nil
}

// Remove implements the service. A path that is not there is removed already.
func (s *Service) Remove(ctx context.Context, req *pb.RemoveRequest) (*pb.RemoveResponse, error) {
	u := account.FromContext(ctx)
	path, err := s.resolve(u, req.GetPath())
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, invalid("path '/' cannot be removed; name a file or folder in it")
	}
	if err := u.Do(func() error { return os.RemoveAll(path) }); err != nil {
		return nil, classify(path, err)
	}
	return &pb.RemoveResponse{}, nil
}

// ListDir implements the service. Links are listed, not followed; a folder that
// the user cannot read is listed without its contents.
func (s *Service) ListDir(ctx context.Context, req *pb.ListDirRequest) (*pb.ListDirResponse, error) {
	u := account.FromContext(ctx)
	root, err := s.resolve(u, req.GetPath())
	if err != nil {
		return nil, err
	}
	depth := max(int(req.GetDepth()), 1)
	entries := []*pb.EntryInfo{}
	err = u.Do(func() error {
		start, err := directory(root)
		if err != nil {
			return err
		}
		return filepath.WalkDir(start, func(path string, d fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if path == start {
				return err
			}
			if err != nil {
				return nil //nolint:nilerr // gone meanwhile, or closed: its entry is there already
			}
			rel := strings.TrimPrefix(strings.TrimPrefix(path, start), "/")
			if fi, err := d.Info(); err == nil {
				entries = append(entries, s.entry(filepath.Join(root, rel), fi))
			}
			if d.IsDir() && strings.Count(rel, "/")+1 >= depth {
				return fs.SkipDir
			}
			return nil
		})
	})
	if err != nil {
		return nil, classify(root, err)
	}
	return &pb.ListDirResponse{Entries: entries}, nil
}

// directory gives the real path of the folder at path, which may be a link.
func directory(path string) (string, error) {
	path2, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(path2)
	if err != nil {
		return "", err
	}
	if !fi.IsDir() {
		return "", invalid("path is not a directory: %s", path)
	}
	return path2, nil
}

func invalid(format string, args ...any) *connect.Error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
