//! What Redis's errors mean.
