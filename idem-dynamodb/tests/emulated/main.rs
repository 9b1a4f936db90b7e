//! The store on emulators of DynamoDB, which the tests start: dynalite, whose conditional writes exclude each other, and
//! moto, which has transactions and returns the item with a failed condition.

mod conformance;
mod costs;
mod emulator;
mod engine;
mod parts;
mod rights;
mod time;
