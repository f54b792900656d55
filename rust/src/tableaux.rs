//! Runge-Kutta methods: the strictly lower triangle, the weights, and the embedded weights.
//!
//! Made by tools/generate_tableaux.py: do not edit.

/// An explicit Runge-Kutta method of at most 7 stages, padded with zeros.
pub struct Tableau {
    pub stages: usize,
    /// Strictly lower triangle.
    pub a: [[f64; 7]; 7],
    /// Weights of the solution.
    pub b: [f64; 7],
    /// Weights of the solution of lower order, or zeros.
    pub embedded: [f64; 7],
    /// Whether the two solutions give an error estimate.
    pub adaptive: bool,
}

/// L. Euler, Institutionum calculi integralis I, 1768
#[rustfmt::skip]
pub static EULER: Tableau = Tableau {
    stages: 1,
    a: [
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ],
    b: [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    embedded: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    adaptive: false,
};

/// W. Kutta, Z. Math. Phys. 46 (1901) 435-453
#[rustfmt::skip]
pub static RK4: Tableau = Tableau {
    stages: 4,
    a: [
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [1.0 / 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 1.0 / 2.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ],
    b: [1.0 / 6.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 6.0, 0.0, 0.0, 0.0],
    embedded: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    adaptive: false,
};

/// J. R. Dormand, P. J. Prince, J. Comput. Appl. Math. 6 (1980) 19-26, RK5(4)7M
#[rustfmt::skip]
pub static DORMAND_PRINCE: Tableau = Tableau {
    stages: 7,
    a: [
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [1.0 / 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [3.0 / 40.0, 9.0 / 40.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [44.0 / 45.0, -56.0 / 15.0, 32.0 / 9.0, 0.0, 0.0, 0.0, 0.0],
        [19372.0 / 6561.0, -25360.0 / 2187.0, 64448.0 / 6561.0, -212.0 / 729.0, 0.0, 0.0, 0.0],
        [9017.0 / 3168.0, -355.0 / 33.0, 46732.0 / 5247.0, 49.0 / 176.0, -5103.0 / 18656.0, 0.0, 0.0],
        [35.0 / 384.0, 0.0, 500.0 / 1113.0, 125.0 / 192.0, -2187.0 / 6784.0, 11.0 / 84.0, 0.0],
    ],
    b: [35.0 / 384.0, 0.0, 500.0 / 1113.0, 125.0 / 192.0, -2187.0 / 6784.0, 11.0 / 84.0, 0.0],
    embedded: [5179.0 / 57600.0, 0.0, 7571.0 / 16695.0, 393.0 / 640.0, -92097.0 / 339200.0, 187.0 / 2100.0, 1.0 / 40.0],
    adaptive: true,
};
