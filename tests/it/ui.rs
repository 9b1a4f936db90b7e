//! Code that the macros accept, and the compiler's messages for code that they reject.

#[test]
fn misuse_is_reported_and_every_shape_compiles() {
    let t = trybuild::TestCases::new();
    t.compile_fail("ui/fail/*.rs");
    t.pass("ui/pass/*.rs");
}
