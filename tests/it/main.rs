//! One binary for all integration tests: one link, one list.

mod attribute;
mod engine;
mod outside;
mod ui;
