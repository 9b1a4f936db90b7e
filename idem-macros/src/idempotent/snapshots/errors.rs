//! Expansion that the test of this name in `snapshots.rs` checks.

::core::compile_error! {
    "unknown option `kye`, did you mean `key`?"
}
::core::compile_error! {
    "this function is already `#[idempotent]`: write one attribute with all options"
}
::core::compile_error! {
    "`24` has no unit: write `24ms`, `24s`, `24m`, `24h` or `24d`"
}
async fn charge(key: &str) -> Result<u64, Error> {
    #[allow(unused_variables)]
    let attempt: ::idem_runtime::__private::Attempt = ::core::option::Option::unwrap(
        ::core::option::Option::None,
    );
    { Ok(attempt.number()) }
}
