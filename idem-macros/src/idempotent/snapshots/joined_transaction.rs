//! Expansion that the test of this name in `snapshots.rs` checks.

async fn add(
    idem: &Idem<PostgresStore>,
    tx: &mut PgConnection,
    key: &str,
) -> Result<u64, Error> {
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = ::idem_runtime::__private::transactions(&idem);
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = ::idem_runtime::__private::free_function(
        ::idem_runtime::__private::Call::new(
            ::core::concat!(::core::module_path!(), "::", "add"),
            &key,
            &::idem_runtime::__private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut ::idem_runtime::__private::Encoder = __idem_encoder;
                    ::idem_runtime::__private::Encoder::map(__encoder, 0usize);
                }
            }),
            ::idem_runtime::__private::Duration::from_secs(86400u64),
        ),
        ::core::concat!(::core::module_path!(), "::", "add"),
        {
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match ::idem_runtime::__private::join_transaction::<
        Result<u64, Error>,
        _,
        _,
    >(
            __idem_handle,
            __idem_call,
            ::idem_runtime::__private::stored_values::<
                <Result<u64, Error> as ::idem_runtime::__private::Returns>::Ok,
            >(),
            ::idem_runtime::__private::call_errors::<
                <Result<u64, Error> as ::idem_runtime::__private::Returns>::Err,
            >(),
            &mut *tx,
        )
        .await
    {
        ::idem_runtime::__private::Result::Ok(__idem_running) => __idem_running,
        ::idem_runtime::__private::Result::Err(__idem_answer) => {
            return ::idem_runtime::__private::returned::<
                Result<u64, Error>,
            >(__idem_answer);
        }
    };
    let __idem_result: Result<u64, Error> = {
        let (__idem_driver, tx) = __idem_running.parts();
        ::idem_runtime::__private::drive_transaction::<
            Result<u64, Error>,
        >(
                __idem_driver,
                async move {
                    #[allow(
                        unreachable_code,
                        clippy::all,
                        clippy::pedantic,
                        clippy::nursery
                    )]
                    if false {
                        let __idem_never: Result<u64, Error> = loop {};
                        return __idem_never;
                    }
                    { insert(tx, key).await }
                },
            )
            .await
    };
    ::idem_runtime::__private::returned::<
        Result<u64, Error>,
    >(
        ::idem_runtime::__private::finish_transaction::<
            Result<u64, Error>,
            _,
        >(
                __idem_running,
                __idem_result,
                |_| ::idem_runtime::__private::ErrorKind::Transient,
            )
            .await,
    )
}
