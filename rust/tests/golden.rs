//! The golden vectors: `python tools/export_golden.py` writes them as text.

mod common;

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::PathBuf;

use common::{Heads, Kept, Simulation, angle_between, order_parameter};
use spo_fast_rust::Status;
use spo_fast_rust::ffi::SpoIntegrator;

/// Arrays by name; a number is an array of one.
struct Case {
    name: String,
    arrays: HashMap<String, Vec<f64>>,
}

impl Case {
    /// A line is `NAME RANK SIZE... WORD...`, a word the bits of a number in hexadecimal.
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let arrays = text.lines().map(|line| {
            let mut words = line.split(' ');
            let name = words.next().unwrap().to_string();
            let rank: usize = words.next().unwrap().parse().unwrap();
            let numbers = words.skip(rank).map(|word| f64::from_bits(u64::from_str_radix(word, 16).unwrap()));
            (name, numbers.collect())
        });
        Self { name: path.display().to_string(), arrays: arrays.collect() }
    }

    fn array(&self, name: &str) -> Vec<f64> {
        self.arrays[name].clone()
    }

    fn number(&self, name: &str) -> f64 {
        self.arrays[name][0]
    }
}

/// Every case of a kind.
fn cases(kind: &str) -> Vec<Case> {
    let folder = env::var_os("SPO_FAST_GOLDEN")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../build/golden")), PathBuf::from)
        .join(kind);
    let missing = format!("no golden vectors in {}: run python tools/export_golden.py", folder.display());
    let mut paths: Vec<_> =
        fs::read_dir(&folder).expect(&missing).map(|entry| entry.unwrap().path()).collect();
    assert!(!paths.is_empty(), "{missing}");
    paths.sort();
    paths.into_iter().map(Case::read).collect()
}

#[test]
fn modulate() {
    for case in cases("modulate") {
        let heads = Heads {
            n_heads: case.number("n_heads") as usize,
            d_model: case.number("d_model") as usize,
            block_size: case.number("block_size") as i64,
            w_q: case.array("w_q"),
            w_k: case.array("w_k"),
            w_v: case.array("w_v"),
            w_o: case.array("w_o"),
            temperature: case.array("temperature"),
            lambda: case.number("lambda"),
        };
        let found = heads.modulate(&case.array("knm"), &case.array("theta")).unwrap();
        let tolerance = case.number("tolerance");
        for (found, right) in found.iter().zip(case.array("expected")) {
            assert!((found - right).abs() <= tolerance, "{}: {found} for {right}", case.name);
        }
    }
}

#[test]
fn step() {
    for case in cases("step") {
        let (n, steps) = (case.number("n") as usize, case.number("steps") as usize);
        let (trajectory, dt_after) = (case.array("trajectory"), case.array("dt_after"));
        let mut run = Simulation {
            omega: case.array("omega"),
            knm: case.array("knm"),
            alpha: Some(case.array("alpha")),
            uniform_alpha: 0.0,
            zeta: case.number("zeta"),
            psi: case.number("psi"),
            heads: None,
            modulate_every: 1,
            integrator: SpoIntegrator {
                method: case.number("method") as i64,
                dt: case.number("dt"),
                atol: case.number("atol"),
                rtol: case.number("rtol"),
            },
            theta: trajectory[..n].to_vec(),
            modulated: vec![],
            t: 0.0,
            dt: case.number("dt"),
            step: 0,
        };
        let mut kept = Kept::room(n, 1, steps);
        for (step, right) in dt_after.iter().enumerate() {
            assert_eq!(run.run(1, Some(&kept.raw())), Status::Ok);
            let error = (run.dt - right).abs();
            assert!(error <= case.number("dt_tolerance") * right, "{}: step {step}", case.name);
        }
        assert_eq!(run.step as usize, steps);
        for (e, &right) in trajectory.iter().enumerate().skip(n) {
            let error = angle_between(kept.theta[e], right);
            assert!(error <= case.number("state_tolerance"), "{}: {error} in entry {e}", case.name);
        }
    }
}

#[test]
fn observables() {
    for case in cases("observables") {
        let (r, psi) = order_parameter(&case.array("theta")).unwrap();
        let right = case.number("r");
        assert!((r - right).abs() <= 1e-12, "{}: r {r}", case.name);
        // Of a small sum the direction is uncertain.
        let error = angle_between(psi, case.number("psi"));
        assert!(error * right <= 1e-12, "{}: psi {psi}", case.name);
    }
}
