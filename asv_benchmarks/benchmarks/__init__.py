"""Benchmarks of spo_fast, one module per family of kernels. How to run them: docs/benchmarks.md."""
