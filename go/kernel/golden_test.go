package kernel

import (
	"bufio"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// golden is one case: named numbers and arrays.
type golden map[string][]float64

func (g golden) number(name string) float64 { return g[name][0] }

func (g golden) size(name string) int { return int(g[name][0]) }

// goldenCases reads all cases of a kind.
func goldenCases(t *testing.T, kind string) map[string]golden {
	t.Helper()
	folder := os.Getenv("SPO_FAST_GOLDEN")
	if folder == "" {
		folder = filepath.Join("..", "..", "build", "golden")
	}
	paths, _ := filepath.Glob(filepath.Join(folder, kind, "*.txt"))
	if len(paths) == 0 {
		t.Fatalf("no golden vectors in %s: run python tools/export_golden.py first", filepath.Join(folder, kind))
	}
	cases := map[string]golden{}
	for _, path := range paths {
		cases[strings.TrimSuffix(filepath.Base(path), ".txt")] = readGolden(t, path)
	}
	return cases
}

// readGolden reads lines NAME RANK SIZE... WORD..., each word the bits of a float64.
func readGolden(t *testing.T, path string) golden {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<28)
	found := golden{}
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		rank, err := strconv.Atoi(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		values := []float64{}
		for _, word := range fields[2+rank:] {
			bits, err := strconv.ParseUint(word, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, math.Float64frombits(bits))
		}
		found[fields[0]] = values
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

func (g golden) modulation() *Modulation {
	return &Modulation{
		Heads: g.size("n_heads"), Model: g.size("d_model"), BlockSize: g.size("block_size"),
		WQ: g["w_q"], WK: g["w_k"], WV: g["w_v"], WO: g["w_o"], Temperature: g["temperature"],
		Lambda: g.number("lambda"),
	}
}

func TestGoldenModulations(t *testing.T) {
	cases := goldenCases(t, "modulate")
	withEverySet(t, func(t *testing.T) {
		for name, g := range cases {
			n := g.size("n")
			out := nans(n * n)
			if status := modulate(g.modulation(), n, g["knm"], g["theta"], out); status != OK {
				t.Errorf("%s: status %d", name, status)
			}
			if gap := largestGap(out, g["expected"]); !(gap <= g.number("tolerance")) {
				t.Errorf("%s: off by %g, allowed %g", name, gap, g.number("tolerance"))
			}
		}
	})
}

func TestGoldenRuns(t *testing.T) {
	cases := goldenCases(t, "step")
	withEverySet(t, func(t *testing.T) {
		for name, g := range cases {
			n, steps := g.size("n"), g.size("steps")
			network := &Network{
				N: n, Omega: g["omega"], Knm: g["knm"], Alpha: g["alpha"], Zeta: g.number("zeta"), Psi: g.number("psi"),
			}
			integrator := &Integrator{Method(g.size("method")), g.number("dt"), g.number("atol"), g.number("rtol")}
			state := &State{Theta: append([]float64{}, g["trajectory"][:n]...), DT: g.number("dt")}
			for step := 1; step <= steps; step++ {
				if status := advance(network, integrator, state, 1, &Record{}); status != OK {
					t.Fatalf("%s: status %d at step %d", name, status, step)
				}
				for i, theta := range state.Theta {
					gap := math.Abs(math.Remainder(theta-g["trajectory"][step*n+i], twoPi))
					if !(gap <= g.number("state_tolerance")) {
						t.Fatalf("%s: phase %d of step %d is off by %g", name, i, step, gap)
					}
				}
				if after := g["dt_after"][step-1]; !(math.Abs(state.DT-after) <= g.number("dt_tolerance")*after) {
					t.Fatalf("%s: step size %g instead of %g after step %d", name, state.DT, after, step)
				}
			}
		}
	})
}

func TestGoldenObservables(t *testing.T) {
	cases := goldenCases(t, "observables")
	withEverySet(t, func(t *testing.T) {
		for name, g := range cases {
			r, psi, status := order(g["theta"])
			if status != OK || !(math.Abs(r-g.number("r")) <= 1e-15) {
				t.Errorf("%s: R = %v instead of %v", name, r, g.number("r"))
			}
			// The direction of a short mean is known less well.
			if gap := math.Abs(math.Remainder(psi-g.number("psi"), twoPi)); !(gap*r <= 1e-15) {
				t.Errorf("%s: psi = %v instead of %v", name, psi, g.number("psi"))
			}
		}
	})
}
