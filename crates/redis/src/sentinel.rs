//! Asking the sentinels who is master.
