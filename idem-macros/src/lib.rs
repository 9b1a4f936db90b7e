//! The macros of [`idem-runtime`](https://docs.rs/idem-runtime), which re-exports them.
