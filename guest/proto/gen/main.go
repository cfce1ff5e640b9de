// Command gen compiles this package's .proto files and runs the two pinned Go
// plug-ins on them, so that `go generate` needs neither protoc nor buf.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// prefix of go_package that is this folder.
const prefix = "github.com/holdfast-run/holdfast/guest/proto/"

// plugins are Go packages of the versions in go.mod, and their parameters.
var plugins = []struct{ pkg, param string }{
	{"google.golang.org/protobuf/cmd/protoc-gen-go", ""},
	{"connectrpc.com/connect/cmd/protoc-gen-connect-go", "simple"},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("guest/proto/gen: ")
	if err := generate(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func generate(ctx context.Context) error {
	names, err := filepath.Glob("*.proto")
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("no .proto files here; run go generate in guest/proto")
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	var all []*descriptorpb.FileDescriptorProto
	seen := map[string]bool{}
	for _, f := range files {
		all = collect(all, seen, f)
	}
	for _, p := range plugins {
		if err := run(ctx, p.pkg, p.param, names, all); err != nil {
			return fmt.Errorf("%s: %w", p.pkg, err)
		}
	}
	return nil
}

// collect appends f after everything it imports: the order plug-ins ask for.
func collect(all []*descriptorpb.FileDescriptorProto, seen map[string]bool, f protoreflect.FileDescriptor) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return all
	}
	seen[f.Path()] = true
	imports := f.Imports()
	for i := range imports.Len() {
		all = collect(all, seen, imports.Get(i).FileDescriptor)
	}
	return append(all, protoutil.ProtoFromFileDescriptor(f))
}

func run(ctx context.Context, pkg, param string, names []string, all []*descriptorpb.FileDescriptorProto) error {
	in, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: names,
		Parameter:      proto.String(param),
		ProtoFile:      all,
	})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", pkg)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var answer pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return errors.New(answer.GetError())
	}
	for _, f := range answer.File {
		name, ok := strings.CutPrefix(f.GetName(), prefix)
		if !ok {
			return fmt.Errorf("go_package of %s is not below %s", f.GetName(), prefix)
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
