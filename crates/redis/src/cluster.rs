//! Which node of a cluster has which slot, and what its redirections mean.
