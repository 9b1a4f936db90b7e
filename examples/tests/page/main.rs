//! Pages in a real browser.

mod browser;
mod console;
mod payments;
