//! What the compiler says, one rule a file: misuse that must not compile, and shapes that must.

#[test]
fn ui() {
    let t = trybuild::TestCases::new();
    t.compile_fail("ui/fail/*.rs");
    t.pass("ui/pass/*.rs");
}
