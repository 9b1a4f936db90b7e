//! One binary for all integration tests: one link, one list.

mod memory;
mod records;
mod sqlite;
