//! Numbers for the tests.

/// A generator of uniform numbers: xorshift64* (S. Vigna, ACM Trans. Math. Softw. 42 (2016) 30).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e3779b97f4a7c15) | 1)
    }

    /// In [low, high).
    pub fn number(&mut self, low: f64, high: f64) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545f4914f6cdd1d) >> 11;
        low + (high - low) * (bits as f64 / (1u64 << 53) as f64)
    }

    pub fn numbers(&mut self, count: usize, low: f64, high: f64) -> Vec<f64> {
        (0..count).map(|_| self.number(low, high)).collect()
    }

    /// A symmetric matrix (n, n) with a zero diagonal; one-sided, some edges are zero in one direction and
    /// almost so in the other.
    pub fn coupling(&mut self, n: usize, density: f64, one_sided: bool) -> Vec<f64> {
        let mut knm = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..i {
                let there = self.number(0.0, 1.0) < density;
                let strength = if there { self.number(-0.5, 1.5) } else { 0.0 };
                (knm[i * n + j], knm[j * n + i]) = (strength, strength);
                if one_sided && (i + j) % 3 == 0 {
                    (knm[i * n + j], knm[j * n + i]) = if i % 2 == 0 { (0.0, 5e-13) } else { (5e-13, 0.0) };
                }
            }
        }
        knm
    }
}
