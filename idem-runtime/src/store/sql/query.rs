//! Text of a statement with the placeholders of its dialect, and the values for them.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use std::ops::Range;

use sqlx::{
    Arguments as _, AssertSqlSafe, Database, Encode, IntoArguments, SqlSafeStr, SqlStr, Type,
};
use sqlx_core::query::query_with_result;

use crate::key::Identity;
use crate::record::{Observation, Outcome, Owner};

/// Syntax of parameters in a dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Placeholders {
    /// Numbered, after this character: `?1` or `$1`.
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres", test)),
        expect(dead_code, reason = "MySQL binds in order")
    )]
    Numbered(char),
    /// `?`, in the order of the text.
    InOrder,
}

/// Text of a statement. Templates use `?1`, `?2`, … in every dialect, so that values are bound alike in all of them.
#[derive(Debug)]
pub(in crate::store) struct Statement {
    text: SqlStr,
    /// Number of values that the statement takes.
    parameters: usize,
    /// For placeholders without numbers: index of the value that each of them takes.
    order: Option<Box<[usize]>>,
    /// Placeholders in the text, in order.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    places: Box<[Place]>,
}

/// Placeholder in a text.
#[cfg(any(feature = "postgres", feature = "mysql"))]
#[derive(Debug)]
struct Place {
    /// Position of the placeholder.
    at: Range<usize>,
    /// Index of its value.
    value: usize,
}

impl Statement {
    /// Creates a statement from a template. The template must contain no input except the checked name of a table.
    pub(in crate::store) fn new(template: &str, placeholders: Placeholders) -> Self {
        let mut text = String::with_capacity(template.len());
        let mut order = Vec::new();
        #[cfg(any(feature = "postgres", feature = "mysql"))]
        let mut places = Vec::new();
        let mut parameters = 0;
        let mut pieces = template.split('?');
        text.extend(pieces.next());
        for piece in pieces {
            let end = piece
                .find(|it: char| !it.is_ascii_digit())
                .unwrap_or(piece.len());
            let (digits, rest) = piece.split_at(end);
            match digits.parse::<usize>() {
                Ok(number) => {
                    parameters = parameters.max(number);
                    #[cfg(any(feature = "postgres", feature = "mysql"))]
                    let from = text.len();
                    match placeholders {
                        Placeholders::Numbered(sign) => {
                            text.push(sign);
                            text.push_str(digits);
                        }
                        Placeholders::InOrder => {
                            text.push('?');
                            order.push(number - 1);
                        }
                    }
                    #[cfg(any(feature = "postgres", feature = "mysql"))]
                    places.push(Place {
                        at: from..text.len(),
                        value: number - 1,
                    });
                }
                // This question mark is no parameter.
                Err(_) => text.push('?'),
            }
            text.push_str(rest);
        }
        Self {
            // Shared text makes the copy for each use cheap.
            text: AssertSqlSafe(std::sync::Arc::<str>::from(text)).into_sql_str(),
            parameters,
            order: (placeholders == Placeholders::InOrder).then(|| order.into()),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            places: places.into(),
        }
    }

    pub(in crate::store) fn query(&self) -> Query<'_> {
        Query {
            statement: self,
            values: Vec::with_capacity(self.parameters),
        }
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::store) fn text(&self) -> SqlStr {
        self.text.clone()
    }

    pub(in crate::store) fn as_str(&self) -> &str {
        self.text.as_str()
    }

    /// Text with a literal in place of each placeholder. `write` appends the literal of the value with this index.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::store) fn with_literals(
        &self,
        size: usize,
        mut write: impl FnMut(&mut String, usize),
    ) -> SqlStr {
        let template = self.text.as_str();
        let mut text = String::with_capacity(template.len() + size);
        let mut from = 0;
        for Place { at, value } in &self.places {
            text.push_str(&template[from..at.start]);
            from = at.end;
            write(&mut text, *value);
        }
        text.push_str(&template[from..]);
        AssertSqlSafe(text).into_sql_str()
    }
}

/// Statement and the values for its parameters, which can be bound again for each try.
#[derive(Debug)]
pub(in crate::store) struct Query<'q> {
    statement: &'q Statement,
    values: Vec<Bound<'q>>,
}

/// Value of a parameter.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) enum Bound<'q> {
    Number(Option<i64>),
    Text(Option<&'q str>),
    Bytes(Option<&'q [u8]>),
}

impl Bound<'_> {
    /// Encoded size in bytes, with the length prefix.
    fn size(&self) -> usize {
        const LENGTH: usize = 4;
        LENGTH
            + match self {
                Self::Number(_) => size_of::<i64>(),
                Self::Text(text) => text.map_or(0, str::len),
                Self::Bytes(bytes) => bytes.map_or(0, <[u8]>::len),
            }
    }

    #[cfg(feature = "mysql")]
    fn write_for_mysql(self, text: &mut String) {
        use std::fmt::Write as _;

        use crate::key::hex;

        // Writing to a string cannot fail.
        let _ = match self {
            Bound::Number(None) | Bound::Text(None) | Bound::Bytes(None) => write!(text, "NULL"),
            Bound::Number(Some(number)) if number < 0 => write!(text, "({number})"),
            Bound::Number(Some(number)) => write!(text, "{number}"),
            Bound::Text(Some(words)) => {
                write!(text, "_utf8mb4 X'{}'", hex::encode(words.as_bytes()))
            }
            Bound::Bytes(Some(bytes)) => write!(text, "X'{}'", hex::encode(bytes)),
        };
    }

    /// Each literal has the type that the driver declares for the parameter, because a function is chosen by types. The
    /// server folds the functions into constants when it plans.
    #[cfg(feature = "postgres")]
    pub(in crate::store) fn write_for_postgres(self, text: &mut String) {
        use std::fmt::Write as _;

        use crate::key::hex;

        // Writing to a string cannot fail.
        let _ = match self {
            Bound::Number(None) => write!(text, "NULL::bigint"),
            Bound::Text(None) => write!(text, "NULL::text"),
            Bound::Bytes(None) => write!(text, "NULL::bytea"),
            // The quotes keep the sign inside of the cast.
            Bound::Number(Some(number)) => write!(text, "'{number}'::bigint"),
            Bound::Text(Some(words)) => {
                let hex = hex::encode(words.as_bytes());
                write!(text, "convert_from(decode('{hex}', 'hex'), 'UTF8')")
            }
            Bound::Bytes(Some(bytes)) => write!(text, "decode('{}', 'hex')", hex::encode(bytes)),
        };
    }
}

impl<'q> Query<'q> {
    fn value(mut self, value: Bound<'q>) -> Self {
        self.values.push(value);
        self
    }

    pub(in crate::store) fn number(self, value: impl Into<Option<i64>>) -> Self {
        self.value(Bound::Number(value.into()))
    }

    pub(in crate::store) fn text(self, value: impl Into<Option<&'q str>>) -> Self {
        self.value(Bound::Text(value.into()))
    }

    pub(in crate::store) fn bytes(self, value: impl Into<Option<&'q [u8]>>) -> Self {
        self.value(Bound::Bytes(value.into()))
    }

    /// Binds scope, operation and key.
    pub(in crate::store) fn identity(self, identity: &'q Identity) -> Self {
        self.text(identity.scope.as_str())
            .text(identity.operation.as_str())
            .text(identity.key.as_str())
    }

    /// Binds parameters 1 to 3.
    pub(in crate::store) fn owner(self, owner: &'q Owner) -> Self {
        self.bytes(&owner.id.as_bytes()[..])
            .bytes(&owner.claim_id.as_bytes()[..])
            .number(owner.fencing_token.number())
    }

    /// Binds parameters 1 to 5.
    pub(in crate::store) fn observation(self, observed: &'q Observation) -> Self {
        let claim_id = observed.claim_id.as_ref();
        self.bytes(&observed.id.as_bytes()[..])
            .text(observed.state.as_str())
            .bytes(claim_id.map(|claim_id| &claim_id.as_bytes()[..]))
            .number(observed.fencing_token.number())
            .number(observed.lease_until.as_micros())
    }

    /// Binds state, codec and payload.
    pub(in crate::store) fn outcome(self, outcome: &'q Outcome) -> Self {
        let payload = outcome.payload();
        self.text(outcome.state().as_str())
            .text(payload.map(|it| &*it.codec))
            .bytes(payload.map(|it| &*it.bytes))
    }

    /// Text of the statement, without its values.
    #[cfg(feature = "mysql")]
    pub(in crate::store) fn template(&self) -> SqlStr {
        self.statement.text()
    }

    /// Text of the statement with its values as literals. Text and bytes are written in hexadecimal, so no content can
    /// end a literal, under any quoting rules of the session.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::store) fn literal(&self) -> SqlStr {
        let write = match self.statement.order {
            #[cfg(feature = "mysql")]
            Some(_) => Bound::write_for_mysql,
            #[cfg(feature = "postgres")]
            _ => Bound::write_for_postgres,
            #[cfg(not(feature = "postgres"))]
            None => Bound::write_for_mysql,
        };
        self.statement
            .with_literals(2 * self.size(), |text, value| {
                write(self.values[value], text);
            })
    }

    fn count(&self) -> usize {
        let order = self.statement.order.as_deref();
        order.map_or(self.values.len(), <[usize]>::len)
    }

    fn values_in_order(&self) -> impl Iterator<Item = Bound<'q>> {
        let order = self.statement.order.as_deref();
        (0..self.count()).map(move |place| self.values[order.map_or(place, |order| order[place])])
    }

    /// Encoded size of the values in bytes.
    pub(in crate::store) fn size(&self) -> usize {
        self.values_in_order().map(|value| value.size()).sum()
    }

    /// Binds the values. The result borrows nothing. If a value cannot be encoded, the result contains that error and
    /// returns it when it runs.
    pub(in crate::store) fn build<DB: Database>(
        &self,
    ) -> sqlx::query::Query<'static, DB, <DB as Database>::Arguments>
    where
        DB::Arguments: IntoArguments<DB>,
        Option<i64>: Encode<'q, DB> + Type<DB>,
        Option<&'q str>: Encode<'q, DB> + Type<DB>,
        Option<&'q [u8]>: Encode<'q, DB> + Type<DB>,
    {
        let mut arguments = DB::Arguments::default();
        // Without this, the arguments would be moved several times as they grow.
        arguments.reserve(self.count(), self.size());
        let bound = self.values_in_order().try_for_each(|value| match value {
            Bound::Number(number) => arguments.add(number),
            Bound::Text(text) => arguments.add(text),
            Bound::Bytes(bytes) => arguments.add(bytes),
        });
        query_with_result(self.statement.text.clone(), bound.map(|()| arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_those_of_the_dialect() {
        let template = "-- Why?\nUPDATE t SET a = ?2, b = ?10 WHERE c = ?1 OR d = ?2";
        let text = |placeholders| Statement::new(template, placeholders);
        assert_eq!(text(Placeholders::Numbered('?')).as_str(), template);
        assert_eq!(
            text(Placeholders::Numbered('$')).as_str(),
            "-- Why?\nUPDATE t SET a = $2, b = $10 WHERE c = $1 OR d = $2"
        );
        let in_order = text(Placeholders::InOrder);
        assert_eq!(
            in_order.as_str(),
            "-- Why?\nUPDATE t SET a = ?, b = ? WHERE c = ? OR d = ?"
        );
        assert_eq!(in_order.order.as_deref(), Some(&[1, 9, 0, 1][..]));
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn literals_hold_whatever_is_in_them() {
        let statement =
            Statement::new("-- Why?\nSELECT ?2, ?1, ?3, ?2 -- ?", Placeholders::InOrder);
        let query = statement
            .query()
            .text("a'b\\?")
            .number(-7)
            .bytes(&b"\0\xff"[..]);
        assert_eq!(
            query.literal().as_str(),
            "-- Why?\nSELECT (-7), _utf8mb4 X'6127625c3f', X'00ff', (-7) -- ?"
        );
        let nothing = statement.query().text(None).number(None).bytes(None);
        assert_eq!(
            nothing.literal().as_str(),
            "-- Why?\nSELECT NULL, NULL, NULL, NULL -- ?"
        );
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn literals_of_postgres_have_the_types_of_parameters() {
        let template = "SELECT ?2, ?1, ?3, ?2 WHERE '?' <> ?10";
        let statement = Statement::new(template, Placeholders::Numbered('$'));
        let query = statement
            .query()
            .text("a'b\\$1?")
            .number(-7)
            .bytes(&b"\0\xff"[..]);
        let query = (4..10).fold(query, |query, _| query.number(None));
        let query = query.text(None);
        assert_eq!(
            query.literal().as_str(),
            "SELECT '-7'::bigint, convert_from(decode('6127625c24313f', 'hex'), 'UTF8'), decode('00ff', 'hex'), \
             '-7'::bigint WHERE '?' <> NULL::text"
        );
    }
}
