package kernel

import (
	"flag"
	"os"
	"strings"
	"testing"
)

const directive = "//go:generate go test -run TestTheLongerVectorsHaveTheSameText -update\n\n"

var update = flag.Bool("update", false, "write the kernels on longer vectors anew")

// The kernels on x4 and x8 are the text of vector_x1.go with other names.
func TestTheLongerVectorsHaveTheSameText(t *testing.T) {
	source, err := os.ReadFile("vector_x1.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, lanes := range []string{"4", "8"} {
		const head = "//go:build goexperiment.simd && amd64\n\n" +
			"// Code generated from vector_x1.go by go generate. DO NOT EDIT.\n\n"
		text := head + strings.NewReplacer(directive, "", "x1", "x"+lanes).Replace(string(source))
		path := "vector_x" + lanes + ".go"
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if present, _ := os.ReadFile(path); string(present) != text {
			t.Errorf("%s is not up to date: go generate ./kernel", path)
		}
	}
}
