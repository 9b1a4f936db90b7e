//! What the macros accept, and what they say of what they do not.

#[test]
fn misuse_is_told_and_every_shape_compiles() {
    let t = trybuild::TestCases::new();
    t.compile_fail("ui/fail/*.rs");
    t.pass("ui/pass/*.rs");
}
