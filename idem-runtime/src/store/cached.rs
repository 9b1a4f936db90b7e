//! Completed outcomes of any store, kept where they can be had faster.
