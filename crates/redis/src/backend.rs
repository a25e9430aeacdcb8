//! The verbs of the contract, each one script.
