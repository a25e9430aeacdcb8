//! tenure in a deterministic simulation.
