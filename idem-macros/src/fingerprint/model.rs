//! The canonical form of a type.

use proc_macro2::TokenStream;
use syn::{ExprPath, Generics, Ident, Member, Type, WherePredicate};

/// Type that gets an implementation of `Fingerprint`.
pub(super) struct Model<'a> {
    pub(super) ident: &'a Ident,
    pub(super) generics: &'a Generics,
    /// Path of the runtime's `__private`.
    pub(super) private: TokenStream,
    /// Name of the map that the form is wrapped in, if it is.
    pub(super) wrap: Option<String>,
    /// Bounds of the implementation, besides those of the type.
    pub(super) bounds: Vec<WherePredicate>,
    pub(super) body: Body<'a>,
}

pub(super) enum Body<'a> {
    Struct(Form<'a>),
    Enum(Vec<Variant<'a>>),
}

pub(super) struct Variant<'a> {
    pub(super) ident: &'a Ident,
    /// Name in the canonical form.
    pub(super) name: String,
    pub(super) form: Form<'a>,
}

/// Fields of a struct or a variant, without those that are skipped.
pub(super) enum Form<'a> {
    Unit,
    Newtype(Field<'a>),
    Tuple(Vec<Field<'a>>),
    Named(Vec<Field<'a>>),
}

impl<'a> Form<'a> {
    pub(super) fn fields(&self) -> &[Field<'a>] {
        match self {
            Self::Unit => &[],
            Self::Newtype(field) => std::slice::from_ref(field),
            Self::Tuple(fields) | Self::Named(fields) => fields,
        }
    }
}

/// Field that is a part of the canonical form.
pub(super) struct Field<'a> {
    pub(super) member: Member,
    /// Name in the canonical form. Empty for a field of a tuple.
    pub(super) name: String,
    pub(super) ty: &'a Type,
    pub(super) encoding: Encoding,
    pub(super) presence: Presence,
}

/// Way in which a field is encoded.
pub(super) enum Encoding {
    /// By the implementation of `Fingerprint` for its type.
    Fingerprint,
    Float,
    /// By this function.
    With(ExprPath),
}

/// Condition for a field to be in the canonical form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Always,
    /// Only if the value differs from the default of its type.
    UnlessDefault,
}
