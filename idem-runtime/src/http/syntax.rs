//! Syntaxes of a key in its header.

/// Syntax that keys must have in their header, and the parser of the header's value: [`parse`](Self::parse),
/// [`find`](Self::find).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum KeySyntax {
    /// Accepts quoted keys, as [`Strict`](Self::Strict) does, and unquoted ones: `Idempotency-Key: 8e03978e-40d5`, as
    /// most clients send it. An unquoted key is visible ASCII without `"`, `,`, `;` and `\`. It is equal to the same
    /// key in quotes.
    #[default]
    Lenient,
    /// Accepts only a string of structured fields: `Idempotency-Key: "8e03978e-40d5"`, as the draft requires (§2.1, RFC
    /// 9651 §3.3.3).
    Strict,
}
