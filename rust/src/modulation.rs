//! Attention over phases, row by row, and the matrix it rescales.
//!
//! A lane is a query i; the keys j follow one after the other, so no sum runs across lanes and no row has a
//! remainder. Logits are kept in units of ln 2: log2(e) / (sqrt(d_h) tau_h) is folded into the queries and
//! the exponential is 2^t. From each query's logits its bound |q_i| max_j |k_j| is subtracted, by
//! Cauchy-Schwarz the cheapest number that no logit exceeds; where that is too far above the logits, their
//! largest one is sought first.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use crate::coupling::{Traits, symmetrise, transpose};
use crate::scratch::Cutter;
use crate::simd::{Kernel, Level, MAX_LANES, Vector, largest_lane, padded};
use crate::vectormath::{Exp2, sincos};

/// Bound of the logits, in powers of two, up to which it replaces their maximum: weights stay above 2^-64 and
/// t rounds to 2^-48.
const BOUND_LIMIT: f64 = 32.0;
/// Weights below 2^-1000 of the largest are raised to it: they cannot be seen in a sum that is at least 1,
/// and 2^t stays normal.
const LEAST_EXPONENT: f64 = -1000.0;
/// Keeps |O| > 0 in the unit output O / (|O| + NORM_FLOOR): part of the definition of the modulation.
const NORM_FLOOR: f64 = 1e-12;

/// Acceptable parameters; the width of a head is d_h = d_model / n_heads.
pub struct Modulation<'a> {
    pub n_heads: usize,
    pub d_model: usize,
    /// Pairs with |i - j| > reach keep K_ij.
    pub reach: usize,
    /// (n_heads, d_model, d_h)
    pub w_q: &'a [f64],
    /// (n_heads, d_model, d_h)
    pub w_k: &'a [f64],
    /// (n_heads, d_model, d_h)
    pub w_v: &'a [f64],
    /// (d_model, d_model)
    pub w_o: &'a [f64],
    /// (n_heads)
    pub temperature: &'a [f64],
    pub lambda: f64,
}

/// The scratch that [`Modulate`] needs, in numbers; `None` beyond `usize`.
pub fn scratch_len(n: usize, d_model: usize, n_heads: usize) -> Option<usize> {
    let width = d_model / n_heads;
    let lines = d_model.checked_mul(2)?.checked_add(width.checked_mul(2)?)?;
    lines.checked_mul(padded(n))?.checked_add(width.checked_mul(MAX_LANES)?)
}

/// out = K' = K with each unmasked pair scaled by 1 + lambda a_ij.
pub struct Modulate<'a> {
    pub n: usize,
    pub knm: &'a [f64],
    pub traits: Traits,
    /// Finite phases, padded with zeros.
    pub theta: &'a [f64],
    pub modulation: &'a Modulation<'a>,
    pub scratch: Cutter<'a>,
    pub out: &'a mut [f64],
}

impl Kernel for Modulate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Level>(self, s: S) {
        let Self { n, knm, traits, theta, modulation, mut scratch, out } = self;
        if n == 0 || modulation.lambda == 0.0 {
            out.copy_from_slice(knm);
            return;
        }
        let unit = scratch.cut(modulation.d_model * padded(n));
        let seen = if traits.symmetric_pattern {
            knm
        } else {
            // The mask is read by columns, as rows of the transpose, for which out is the room.
            transpose(n, knm, out);
            &*out
        };
        let masked = modulation.reach + 1 < n || !traits.all_edges;
        Attention { n, seen, masked, theta, modulation }.unit_outputs(s, scratch, unit);
        let source = if traits.exactly_symmetric {
            Some(knm)
        } else {
            symmetrise(n, knm, out);
            None
        };
        s.enter(Scale { n, source, modulation, unit, out });
    }
}

/// The part of the modulation that depends on K by its pattern alone.
struct Attention<'a> {
    n: usize,
    /// (n, n): row j tells by its zeros which queries do not see key j.
    seen: &'a [f64],
    /// Whether there is a query that does not see all the others.
    masked: bool,
    theta: &'a [f64],
    modulation: &'a Modulation<'a>,
}

impl Attention<'_> {
    /// O / (|O| + NORM_FLOOR), O = y W_O, of all oscillators: unit (d_model, padded).
    #[inline(always)]
    fn unit_outputs<S: Level>(&self, s: S, mut scratch: Cutter, unit: &mut [f64]) {
        let &Self { n, seen, masked, theta, modulation } = self;
        let (padded, d_model) = (padded(n), modulation.d_model);
        let width = d_model / modulation.n_heads;
        let queries = scratch.cut(d_model * padded);
        let pairs = scratch.cut(2 * width * padded);
        let room = scratch.cut(width * MAX_LANES);
        harmonics(s, padded, theta, unit);
        for (h, queries) in queries.chunks_exact_mut(width * padded).enumerate() {
            let weights = h * d_model * width..(h + 1) * d_model * width;
            let longest_key = s.enter(Project {
                padded,
                width,
                features: unit,
                scale: LOG2_E / ((width as f64).sqrt() * modulation.temperature[h]),
                w_q: &modulation.w_q[weights.clone()],
                w_k: &modulation.w_k[weights.clone()],
                w_v: &modulation.w_v[weights],
                queries,
                pairs,
            });
            let reach = modulation.reach as f64;
            let head = Head { n, padded, width, pairs, longest_key, seen, masked, reach };
            attend(s, &head, queries, room);
        }
        project_outputs(s, padded, queries, modulation.w_o, unit);
    }
}

/// x_2m = cos((m + 1) theta), x_2m+1 = sin((m + 1) theta), by the addition theorem from the first pair: x
/// (d_model, padded).
#[inline(always)]
fn harmonics<S: Level>(s: S, padded: usize, theta: &[f64], x: &mut [f64]) {
    for i in (0..padded).step_by(S::LANES) {
        let (first_sine, first_cosine) = sincos(s, s.load(&theta[i..]));
        let (mut sine, mut cosine) = (first_sine, first_cosine);
        for pair in x.chunks_exact_mut(2 * padded) {
            cosine.store(&mut pair[i..]);
            sine.store(&mut pair[padded + i..]);
            let next = cosine.mul_add(first_cosine, -(sine * first_sine));
            sine = sine.mul_add(first_cosine, cosine * first_sine);
            cosine = next;
        }
    }
}

/// Queries = scale x W_Q, keys = x W_K, values = x W_V for one head; weights (d_model, width). The three sums
/// of a row share each load of x and do not wait for one another. Gives the length of the longest key.
struct Project<'a> {
    padded: usize,
    width: usize,
    /// x (d_model, padded)
    features: &'a [f64],
    scale: f64,
    w_q: &'a [f64],
    w_k: &'a [f64],
    w_v: &'a [f64],
    /// (width, padded)
    queries: &'a mut [f64],
    /// As in [`Head`].
    pairs: &'a mut [f64],
}

impl Kernel for Project<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Level>(self, s: S) -> f64 {
        let Self { padded, width, scale, .. } = self;
        let mut longest = s.zero();
        for (i, pairs) in (0..padded).step_by(S::LANES).zip(self.pairs.chunks_exact_mut(2 * width * S::LANES))
        {
            let mut length = s.zero();
            for e in 0..width {
                let [mut query, mut key, mut value] = [s.zero(); 3];
                for (m, row) in self.features.chunks_exact(padded).enumerate() {
                    let (feature, weight) = (s.load(&row[i..]), m * width + e);
                    query = feature.mul_add(s.splat(self.w_q[weight]), query);
                    key = feature.mul_add(s.splat(self.w_k[weight]), key);
                    value = feature.mul_add(s.splat(self.w_v[weight]), value);
                }
                length = key.mul_add(key, length);
                (s.splat(scale) * query).store(&mut self.queries[e * padded + i..]);
                let [mut keys, mut values] = [[0.0; MAX_LANES]; 2];
                key.store(&mut keys);
                value.store(&mut values);
                for (lane, pair) in pairs.chunks_exact_mut(2 * width).enumerate() {
                    (pair[e], pair[width + e]) = (keys[lane], values[lane]);
                }
            }
            longest = length.max(longest);
        }
        largest_lane(longest).sqrt()
    }
}

/// The keys and values of one head.
struct Head<'a> {
    n: usize,
    padded: usize,
    width: usize,
    /// (padded, 2, width): the key of each oscillator and its value.
    pairs: &'a [f64],
    longest_key: f64,
    /// (n, n): row j tells by its zeros which queries do not see key j.
    seen: &'a [f64],
    masked: bool,
    /// |i - j| up to it is seen.
    reach: f64,
}

/// Replaces the queries of a head by the softmax-weighted means of its values; room for one vector an entry.
#[inline(always)]
fn attend<S: Level>(s: S, head: &Head, queries: &mut [f64], room: &mut [f64]) {
    match head.width {
        1 => s.enter(AttendInRegisters::<1> { head, queries }),
        2 => s.enter(AttendInRegisters::<2> { head, queries }),
        4 => s.enter(AttendInRegisters::<4> { head, queries }),
        8 => s.enter(AttendInRegisters::<8> { head, queries }),
        _ => s.enter(AttendInMemory { head, queries, room }),
    }
}

/// A common head width, whose vectors stay in registers.
struct AttendInRegisters<'a, const WIDTH: usize> {
    head: &'a Head<'a>,
    queries: &'a mut [f64],
}

impl<const WIDTH: usize> Kernel for AttendInRegisters<'_, WIDTH> {
    type Output = ();

    #[inline(always)]
    fn run<S: Level>(self, s: S) {
        let Self { head, queries } = self;
        let exp2 = Exp2::new(s);
        for i0 in (0..head.n).step_by(S::LANES) {
            let mut q = [s.zero(); WIDTH];
            for (e, q) in q.iter_mut().enumerate() {
                *q = s.load(&queries[e * head.padded + i0..]);
            }
            let mut o = [s.zero(); WIDTH];
            let share = Sums { s, head, exp2: &exp2, width: WIDTH, i0, q: &q }.gather(&mut o);
            for (e, o) in o.into_iter().enumerate() {
                (o * share).store(&mut queries[e * head.padded + i0..]);
            }
        }
    }
}

/// Any other width.
struct AttendInMemory<'a> {
    head: &'a Head<'a>,
    queries: &'a mut [f64],
    room: &'a mut [f64],
}

impl Kernel for AttendInMemory<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Level>(self, s: S) {
        let Self { head, queries, room } = self;
        let exp2 = Exp2::new(s);
        for i0 in (0..head.n).step_by(S::LANES) {
            let q = InMemory { rows: &mut queries[i0..], stride: head.padded };
            let mut o = InMemory { rows: &mut *room, stride: S::LANES };
            o.rows.fill(0.0);
            let share = Sums { s, head, exp2: &exp2, width: head.width, i0, q: &q }.gather(&mut o);
            for (e, o) in room.chunks_exact(S::LANES).take(head.width).enumerate() {
                (s.load(o) * share).store(&mut queries[e * head.padded + i0..]);
            }
        }
    }
}

/// One vector for each entry of a head.
trait Bank<S: Level> {
    fn get(&self, s: S, e: usize) -> S::Vector;
    fn set(&mut self, e: usize, x: S::Vector);
}

impl<S: Level, const WIDTH: usize> Bank<S> for [S::Vector; WIDTH] {
    #[inline(always)]
    fn get(&self, _: S, e: usize) -> S::Vector {
        self[e]
    }

    #[inline(always)]
    fn set(&mut self, e: usize, x: S::Vector) {
        self[e] = x;
    }
}

struct InMemory<'a> {
    rows: &'a mut [f64],
    stride: usize,
}

impl<S: Level> Bank<S> for InMemory<'_> {
    #[inline(always)]
    fn get(&self, s: S, e: usize) -> S::Vector {
        s.load(&self.rows[e * self.stride..])
    }

    #[inline(always)]
    fn set(&mut self, e: usize, x: S::Vector) {
        x.store(&mut self.rows[e * self.stride..]);
    }
}

/// What the queries i0 ... i0 + LANES - 1 gather over the keys.
struct Sums<'a, S: Level, B> {
    s: S,
    head: &'a Head<'a>,
    exp2: &'a Exp2<S::Vector>,
    width: usize,
    i0: usize,
    q: &'a B,
}

impl<S: Level, B: Bank<S>> Sums<'_, S, B> {
    /// Adds the weighted values up in `o`; gives the inverse of the sum of the weights, or 0 where a query
    /// sees nothing.
    #[inline(always)]
    fn gather(&self, o: &mut B) -> S::Vector {
        let s = self.s;
        let mut length = s.zero();
        for e in 0..self.width {
            length = self.q.get(s, e).mul_add(self.q.get(s, e), length);
        }
        let bound = length.sqrt() * s.splat(self.head.longest_key);
        // False for a NaN, too: infinity times a key of length 0.
        let bounded = S::Vector::all(bound.le(s.splat(BOUND_LIMIT)));
        let total = match (bounded, self.head.masked) {
            (true, false) => self.add_all::<false, false>(bound, o),
            (true, true) => self.add_all::<true, false>(bound, o),
            // Rare: worth no code of its own where nothing is masked.
            (false, _) => self.add_all::<true, true>(self.largest_logit(), o),
        };
        (s.splat(1.0) / total).keep(s.zero().lt(total))
    }

    /// The keys that may be seen, but for those among the lanes, and those among the lanes.
    #[inline(always)]
    fn keys<const MASKED: bool>(&self) -> ([Range<usize>; 2], Range<usize>) {
        let (i0, end) = (self.i0, self.i0 + S::LANES);
        let (low, high) = if MASKED {
            // A float as large as usize becomes the largest usize.
            let reach = self.head.reach as usize;
            (i0.saturating_sub(reach), end.saturating_add(reach).min(self.head.n))
        } else {
            (0, self.head.n)
        };
        let own_end = end.min(high);
        ([low..i0, own_end..high], i0..own_end)
    }

    /// Some keys, each with its number, entries and value.
    #[inline(always)]
    fn pairs(&self, keys: Range<usize>) -> impl Iterator<Item = (usize, &[f64])> {
        let entries = 2 * self.width;
        keys.clone().zip(self.head.pairs[keys.start * entries..keys.end * entries].chunks_exact(entries))
    }

    /// Adds up the values; gives the sum of the weights.
    #[inline(always)]
    fn add_all<const MASKED: bool, const CLAMPED: bool>(&self, shift: S::Vector, o: &mut B) -> S::Vector {
        let (others, own) = self.keys::<MASKED>();
        let mut total = self.s.zero();
        for keys in others {
            for (j, pair) in self.pairs(keys) {
                self.add_key::<MASKED, CLAMPED, false>(j, pair, shift, &mut total, o);
            }
        }
        for (j, pair) in self.pairs(own) {
            self.add_key::<MASKED, CLAMPED, true>(j, pair, shift, &mut total, o);
        }
        total
    }

    #[inline(always)]
    fn add_key<const MASKED: bool, const CLAMPED: bool, const OWN: bool>(
        &self,
        j: usize,
        pair: &[f64],
        shift: S::Vector,
        total: &mut S::Vector,
        o: &mut B,
    ) {
        let (s, (key, value)) = (self.s, pair.split_at(self.width));
        let t = if CLAMPED {
            // A logit of any size must round as it did when the largest was sought: t <= 0 then holds
            // exactly.
            (self.logit(key, s.zero()) - shift).max(s.splat(LEAST_EXPONENT))
        } else {
            self.logit(key, -shift)
        };
        let mut weight = self.exp2.of(t);
        if MASKED {
            weight = weight.keep(self.seen(j));
        }
        if OWN {
            weight = weight.keep(s.all_but(j - self.i0));
        }
        *total = *total + weight;
        for (e, &value) in value.iter().enumerate() {
            o.set(e, weight.mul_add(s.splat(value), o.get(s, e)));
        }
    }

    /// q_i . k + start
    #[inline(always)]
    fn logit(&self, key: &[f64], start: S::Vector) -> S::Vector {
        let mut t = start;
        for (e, &key) in key.iter().enumerate() {
            t = self.q.get(self.s, e).mul_add(self.s.splat(key), t);
        }
        t
    }

    /// The queries that see key j: an edge, within the band.
    #[inline(always)]
    fn seen(&self, j: usize) -> <S::Vector as Vector>::Mask {
        let (s, head) = (self.s, self.head);
        let row = &head.seen[j * head.n..(j + 1) * head.n];
        let distance = (s.count() + s.splat(self.i0 as f64 - j as f64)).abs();
        s.load_up_to(&row[self.i0..]).ne(s.zero()) & distance.le(s.splat(head.reach))
    }

    /// The largest logit each query sees; 0 where it sees none.
    #[inline(always)]
    fn largest_logit(&self) -> S::Vector {
        let s = self.s;
        let none = s.splat(f64::NEG_INFINITY);
        let mut largest = none;
        let (others, own) = self.keys::<true>();
        for keys in others.into_iter().chain([own]) {
            for (j, pair) in self.pairs(keys) {
                let seen = self.seen(j) & s.all_but(j.wrapping_sub(self.i0));
                let logit = self.logit(&pair[..self.width], s.zero());
                largest = S::Vector::select(seen, logit, none).max(largest);
            }
        }
        S::Vector::select(largest.eq(none), s.zero(), largest)
    }
}

/// unit = y W_O, each column divided by its length; y, unit (d_model, padded).
#[inline(always)]
fn project_outputs<S: Level>(s: S, padded: usize, y: &[f64], w_o: &[f64], unit: &mut [f64]) {
    let d_model = y.len() / padded;
    for i in (0..padded).step_by(S::LANES) {
        let mut squares = s.zero();
        for e in 0..d_model {
            let mut sum = s.zero();
            for (row, weights) in y.chunks_exact(padded).zip(w_o.chunks_exact(d_model)) {
                sum = s.load(&row[i..]).mul_add(s.splat(weights[e]), sum);
            }
            squares = sum.mul_add(sum, squares);
            sum.store(&mut unit[e * padded + i..]);
        }
        let inverse = s.splat(1.0) / (squares.sqrt() + s.splat(NORM_FLOOR));
        for row in unit.chunks_exact_mut(padded) {
            (s.load(&row[i..]) * inverse).store(&mut row[i..]);
        }
    }
}

/// out_ij = K_ij (1 + lambda / 2 + u_i . u_j) within the band, u = sqrt(lambda / 2) unit: symmetric to the
/// last bit, since products commute and the sums run in one order. Spoils unit.
struct Scale<'a> {
    n: usize,
    /// K, if it is exactly symmetric; otherwise out holds its symmetric part.
    source: Option<&'a [f64]>,
    modulation: &'a Modulation<'a>,
    unit: &'a mut [f64],
    out: &'a mut [f64],
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Level>(self, s: S) {
        let Self { n, source, modulation, unit: u, out } = self;
        let (lambda, reach) = (modulation.lambda, modulation.reach);
        let root = s.splat((0.5 * lambda).sqrt());
        for lanes in u.chunks_exact_mut(S::LANES) {
            (root * s.load(lanes)).store(lanes);
        }
        let gram = Gram { n, padded: padded(n), base: 1.0 + 0.5 * lambda, u };
        if reach + 1 < n {
            if let Some(knm) = source {
                out.copy_from_slice(knm);
            }
            for (i, row) in out.chunks_exact_mut(n).enumerate() {
                let band = i.saturating_sub(reach)..(i + reach + 1).min(n);
                gram.scale_rows::<S, 1, 0>(s, i, band, None, row);
            }
        } else {
            gram.scale_all(s, source, out);
        }
        for i in 0..n {
            out[i * n + i] = 0.0;
        }
    }
}

struct Gram<'a> {
    n: usize,
    padded: usize,
    base: f64,
    /// (d_model, padded)
    u: &'a [f64],
}

impl Gram<'_> {
    #[inline(always)]
    fn scale_all<S: Level>(&self, s: S, source: Option<&[f64]>, out: &mut [f64]) {
        let n = self.n;
        let mut i = 0;
        while i < n {
            let rows = if n - i >= 4 { 4 } else { 1 };
            let part = i * n..(i + rows) * n;
            let (source, out) = (source.map(|knm| &knm[part.clone()]), &mut out[part]);
            match (rows, self.u.len() / self.padded) {
                (4, 8) => self.scale_rows::<S, 4, 8>(s, i, 0..n, source, out),
                (4, _) => self.scale_rows::<S, 4, 0>(s, i, 0..n, source, out),
                _ => self.scale_rows::<S, 1, 0>(s, i, 0..n, source, out),
            }
            i += rows;
        }
    }

    /// Rows i ... i + ROWS - 1, some columns; a `D_MODEL` of 0 stands for any.
    #[inline(always)]
    fn scale_rows<S: Level, const ROWS: usize, const D_MODEL: usize>(
        &self,
        s: S,
        i: usize,
        columns: Range<usize>,
        source: Option<&[f64]>,
        out: &mut [f64],
    ) {
        let mut j = columns.start;
        while j + S::LANES <= columns.end {
            self.scale_lanes::<S, ROWS, D_MODEL>(s, i, j..j + S::LANES, source, out);
            j += S::LANES;
        }
        if j < columns.end {
            self.scale_lanes::<S, ROWS, D_MODEL>(s, i, j..columns.end, source, out);
        }
    }

    #[inline(always)]
    fn scale_lanes<S: Level, const ROWS: usize, const D_MODEL: usize>(
        &self,
        s: S,
        i: usize,
        columns: Range<usize>,
        source: Option<&[f64]>,
        out: &mut [f64],
    ) {
        let d_model = if D_MODEL > 0 { D_MODEL } else { self.u.len() / self.padded };
        let mut factors = [s.splat(self.base); ROWS];
        for e in 0..d_model {
            let line = &self.u[e * self.padded..(e + 1) * self.padded];
            let (row, column) = (&line[i..i + ROWS], s.load_up_to(&line[columns.clone()]));
            for (factor, &u) in factors.iter_mut().zip(row) {
                *factor = s.splat(u).mul_add(column, *factor);
            }
        }
        for (r, factor) in factors.into_iter().enumerate() {
            let entries = r * self.n + columns.start..r * self.n + columns.end;
            let place = &mut out[entries.clone()];
            let k = s.load_up_to(source.map_or(&*place, |rows| &rows[entries]));
            (k * factor).store_up_to(place, S::LANES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::array::from_fn;

    use super::*;
    use crate::coupling::Scan;
    use crate::scratch::Scratch;
    use crate::simd::{Portable, on_every_level};
    use crate::testing::Random;

    /// A case of its own: the kernel, with arrays made from a seed.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        n: usize,
        n_heads: usize,
        d_model: usize,
        reach: usize,
        temperature: f64,
        /// Of the edges.
        density: f64,
        one_sided: bool,
    }

    impl Kernel for Case {
        type Output = Vec<f64>;

        #[inline(always)]
        fn run<S: Level>(self, s: S) -> Vec<f64> {
            let Self { n, n_heads, d_model, .. } = self;
            let mut random = Random::new(n as u64);
            let knm = random.coupling(n, self.density, self.one_sided);
            let weights: [Vec<f64>; 4] = from_fn(|_| random.numbers(d_model * d_model, -1.0, 1.0));
            let modulation = Modulation {
                n_heads,
                d_model,
                reach: self.reach,
                w_q: &weights[0],
                w_k: &weights[1],
                w_v: &weights[2],
                w_o: &weights[3],
                temperature: &vec![self.temperature; n_heads],
                lambda: 0.7,
            };
            let mut theta = random.numbers(n, -10.0, 10.0);
            theta.resize(padded(n), 0.0);
            let traits = Scan { n, knm: &knm }.run(s).unwrap();
            let mut scratch = Scratch::new(scratch_len(n, d_model, n_heads)).unwrap();
            let mut out = vec![f64::NAN; n * n];
            let scratch = scratch.cutter();
            let (theta, modulation) = (&theta, &modulation);
            Modulate { n, knm: &knm, traits, theta, modulation, scratch, out: &mut out }.run(s);
            out
        }
    }

    #[test]
    fn every_level_gives_the_same_matrix_and_an_exactly_symmetric_one() {
        let full = Case {
            n: 0,
            n_heads: 4,
            d_model: 8,
            reach: 1 << 28,
            temperature: 1.0,
            density: 1.0,
            one_sided: false,
        };
        for n in [1, 2, 3, 7, 8, 9, 16, 17, 33] {
            for case in [
                Case { n, ..full },
                Case { n, n_heads: 1, ..full },
                Case { n, n_heads: 2, ..full },
                Case { n, n_heads: 8, ..full },
                Case { n, n_heads: 2, d_model: 6, ..full },
                Case { n, n_heads: 2, d_model: 6, temperature: 1e-3, ..full },
                Case { n, temperature: 1e-3, ..full },
                Case { n, temperature: 1e-3, density: 0.3, ..full },
                Case { n, reach: 1, ..full },
                Case { n, reach: 5, density: 0.6, ..full },
                Case { n, density: 0.5, one_sided: true, ..full },
            ] {
                let expected = case.run(Portable);
                for (level, found) in on_every_level(case) {
                    let error = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert!(
                        error <= 1e-13 && found.iter().all(|x| x.is_finite()),
                        "{level}: {error} in {case:?}"
                    );
                    let symmetric = (0..n).all(|i| (0..n).all(|j| found[i * n + j] == found[j * n + i]));
                    assert!(symmetric && (0..n).all(|i| found[i * n + i] == 0.0), "{level}: {case:?}");
                }
            }
        }
    }
}
