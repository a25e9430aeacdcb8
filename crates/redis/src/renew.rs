//! Renewals, in batches, on a connection of their own.
