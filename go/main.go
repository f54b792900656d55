// Command spofast is the C boundary of package kernel, built with -buildmode=c-shared: the functions of
// spo_fast.h, whose public names are in exports.c.
//
// Arguments are seen in place, as slices over the caller's memory; no pointer is kept. Scratch comes from
// malloc, since Go ends the process when its own heap cannot grow; nothing here allocates from that heap, so
// that no collection is ever due. No goroutine is started, and a panic becomes a status.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../csrc/include
#include <stdlib.h>
#include "spo_fast.h"

void give_back_pipe(void);

// Unlike C.malloc, which never returns nil.
static void *obtain(size_t size) { return malloc(size); }
*/
import "C"

import (
	"unsafe"

	"spofast/kernel"
)

func main() {}

func init() { C.give_back_pipe() }

// doubles is the array of the given sizes at p; nil when p is NULL or a size is out of range, which is
// refused later.
func doubles(p *C.double, sizes ...int) []float64 {
	length := 1
	for _, size := range sizes {
		if size < 0 || size > kernel.LargestSize {
			return nil
		}
		length *= size
	}
	return array(p, length)
}

// array is the array of that length at p, nil when p is NULL.
func array(p *C.double, length int) []float64 {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*float64)(p), length)
}

// scratch is a piece of memory that lives for one call.
type scratch struct{ start unsafe.Pointer }

const cacheLine = 64

// take obtains size float64, aligned to cache lines; nil when there is no such memory.
func (s *scratch) take(size int) []float64 {
	s.start = C.obtain(C.size_t(size)*8 + cacheLine)
	if s.start == nil {
		return nil
	}
	skip := -uintptr(s.start) % cacheLine
	return unsafe.Slice((*float64)(unsafe.Add(s.start, skip)), size)
}

func (s *scratch) free() { C.free(s.start) }

// refuse turns a panic into a status: only a size that no machine holds or a number of steps that never ends
// can cause one.
func refuse(status *C.int32_t) {
	if recover() != nil {
		*status = C.SPO_INVALID_ARGUMENT
	}
}

func modulationOf(m *C.spo_modulation) kernel.Modulation {
	modulation := kernel.Modulation{
		Heads: int(m.n_heads), Model: int(m.d_model), BlockSize: int(m.block_size), Lambda: float64(m.lambda),
	}
	if modulation.SizesAcceptable() {
		model, heads := modulation.Model, modulation.Heads
		modulation.WQ, modulation.WK = doubles(m.w_q, model, model), doubles(m.w_k, model, model)
		modulation.WV, modulation.WO = doubles(m.w_v, model, model), doubles(m.w_o, model, model)
		modulation.Temperature = doubles(m.temperature, heads)
	}
	return modulation
}

//export goModulate
func goModulate(n C.int64_t, knm, theta *C.double, m *C.spo_modulation, out *C.double) (status C.int32_t) {
	defer refuse(&status)
	if m == nil {
		return C.SPO_INVALID_ARGUMENT
	}
	modulation, size := modulationOf(m), int(n)
	if !modulation.Acceptable(size) {
		return C.SPO_INVALID_ARGUMENT
	}
	var room scratch
	defer room.free()
	return C.int32_t(modulation.Modulate(
		size, doubles(knm, size, size), doubles(theta, size), doubles(out, size, size), room.take))
}

//export goOrderParameter
func goOrderParameter(n C.int64_t, theta, r, psi *C.double) (status C.int32_t) {
	defer refuse(&status)
	if n < 0 || n > 0 && theta == nil || r == nil || psi == nil {
		return C.SPO_INVALID_ARGUMENT
	}
	var room scratch
	defer room.free()
	memory := room.take(kernel.OrderScratch)
	if memory == nil {
		return C.SPO_OUT_OF_MEMORY
	}
	radius, phase, found := kernel.OrderParameter(array(theta, int(n)), memory)
	if found == kernel.OK {
		*r, *psi = C.double(radius), C.double(phase)
	}
	return C.int32_t(found)
}

//export goKuramotoRun
func goKuramotoRun(
	net *C.spo_network, integ *C.spo_integrator, st *C.spo_state, steps C.int64_t, rec *C.spo_record,
) (status C.int32_t) {
	defer refuse(&status)
	if net == nil || integ == nil || st == nil {
		return C.SPO_INVALID_ARGUMENT
	}
	n := int(net.n)
	network := kernel.Network{
		N: n, Omega: doubles(net.omega, n), Knm: doubles(net.knm, n, n), Alpha: doubles(net.alpha, n, n),
		UniformAlpha: float64(net.uniform_alpha), Zeta: float64(net.zeta), Psi: float64(net.psi),
		ModulateEvery: int64(net.modulate_every),
	}
	if net.modulation != nil {
		network.Modulated, network.Modulation = true, modulationOf(net.modulation)
	}
	integrator := kernel.Integrator{
		Method: kernel.Method(integ.method), DT: float64(integ.dt),
		Atol: float64(integ.atol), Rtol: float64(integ.rtol),
	}
	state := kernel.State{
		Theta: doubles(st.theta, n), Modulated: doubles(st.modulated, n, n),
		T: float64(st.t), DT: float64(st.dt), Step: int64(st.step),
	}
	if !kernel.Acceptable(&network, &integrator, &state, int64(steps)) {
		return C.SPO_INVALID_ARGUMENT
	}
	record := recordOf(rec, n, int(st.step)+int(steps))
	var room scratch
	defer room.free()
	memory := room.take(kernel.RunScratch(&network, integrator.Method))
	if memory == nil {
		return C.SPO_OUT_OF_MEMORY
	}
	status = C.int32_t(kernel.Run(&network, &integrator, &state, int64(steps), &record, memory))
	st.t, st.dt, st.step = C.double(state.T), C.double(state.DT), C.int64_t(state.Step)
	return status
}

// recordOf is a record that ends with the state at step last.
func recordOf(rec *C.spo_record, n, last int) kernel.Record {
	if rec == nil {
		return kernel.Record{}
	}
	record := kernel.Record{
		Every: int64(rec.every),
		R:     array(rec.r, last+1), Psi: array(rec.psi, last+1), TObserved: array(rec.t_observe, last+1),
	}
	if rec.every > 0 {
		rows := last/int(rec.every) + 1
		record.Theta, record.T = array(rec.theta, rows*n), array(rec.t, rows)
	}
	return record
}
