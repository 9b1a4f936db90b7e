//! One binary for all integration tests: one link, one list.

mod engine;
mod outside;
mod ui;
