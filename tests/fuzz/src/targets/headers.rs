//! The header with the key.

use idem_runtime::http::KeySyntax;
use idem_store::structured;
use sfv::{BareItem, Item, Parser};

/// A string of structured fields is read as the crate `sfv` reads it, and what is read is written and read again.
pub(super) fn key_header(input: &[u8]) {
    let value = structured::trim(input);
    let read = structured::read(value);
    let item = Parser::new(value).parse::<Item>();
    if let Ok(Item {
        bare_item: BareItem::String(text),
        ..
    }) = &item
    {
        assert_eq!(read.as_deref(), Some(text.as_str()), "`sfv` reads a string");
    }
    if let Some(text) = &read {
        let written = structured::write(text);
        assert_eq!(structured::read(written.as_bytes()).as_ref(), Some(text));
        let again = Parser::new(&written).parse::<Item>().expect("a valid item");
        assert_eq!(
            again.bare_item.as_string().map(sfv::StringRef::as_str),
            Some(text.as_str())
        );
    }
    let [strict, lenient] = [KeySyntax::Strict, KeySyntax::Lenient].map(|it| it.parse(input));
    if let Ok(key) = &strict {
        assert_eq!(lenient.as_ref(), Ok(key));
        assert_eq!(read.as_deref(), Some(key.as_str()));
    }
    if let Ok(key) = &lenient {
        let quoted = structured::write(key.as_str());
        assert_eq!(KeySyntax::Strict.parse(quoted.as_bytes()).as_ref(), Ok(key));
    }
}
