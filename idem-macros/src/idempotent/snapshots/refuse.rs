//! Expansion that the test of this name in `snapshots.rs` checks.

async fn charge(key: String, amount: u64) -> Result<Receipt, Error> {
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = ::idem_runtime::__private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = ::idem_runtime::__private::free_function(
        ::idem_runtime::__private::Call::new(
                ::core::concat!(::core::module_path!(), "::", "charge"),
                &key,
                &::idem_runtime::__private::from_fn(|__idem_encoder| {
                    {
                        let __encoder: &mut ::idem_runtime::__private::Encoder = __idem_encoder;
                        ::idem_runtime::__private::Encoder::map(
                            __encoder,
                            0usize
                                + ::idem_runtime::__private::Encoder::present(
                                    ::idem_runtime::__private::argument(&amount),
                                ),
                        );
                        ::idem_runtime::__private::Encoder::entry(
                            __encoder,
                            b"famount",
                            ::idem_runtime::__private::argument(&amount),
                        );
                    }
                }),
                TTL,
            )
            .lease(::idem_runtime::__private::Duration::from_secs(90u64))
            .wait(::idem_runtime::__private::Duration::from_secs(0u64))
            .on_crash(::idem_runtime::__private::OnCrash::Refuse)
            .run_on_store_error(),
        ::core::concat!(::core::module_path!(), "::", "charge"),
        {
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match ::idem_runtime::__private::enter::<
        Result<Receipt, Error>,
    >(
            __idem_handle,
            __idem_call,
            ::idem_runtime::__private::stored_values::<
                <Result<Receipt, Error> as ::idem_runtime::__private::Returns>::Ok,
            >(),
            ::idem_runtime::__private::call_errors::<
                <Result<Receipt, Error> as ::idem_runtime::__private::Returns>::Err,
            >()
                .with_stored(
                    ::idem_runtime::__private::stored_errors::<
                        <Result<
                            Receipt,
                            Error,
                        > as ::idem_runtime::__private::Returns>::Err,
                    >(),
                ),
        )
        .await
    {
        ::idem_runtime::__private::Result::Ok(__idem_running) => __idem_running,
        ::idem_runtime::__private::Result::Err(__idem_answer) => {
            return ::idem_runtime::__private::returned::<
                Result<Receipt, Error>,
            >(__idem_answer);
        }
    };
    let __idem_result: Result<Receipt, Error> = ::idem_runtime::__private::drive::<
        Result<Receipt, Error>,
    >(
            &mut __idem_running,
            async move {
                #[allow(
                    unreachable_code,
                    clippy::all,
                    clippy::pedantic,
                    clippy::nursery
                )]
                if false {
                    let __idem_never: Result<Receipt, Error> = loop {};
                    return __idem_never;
                }
                { pay(key, amount).await }
            },
        )
        .await;
    ::idem_runtime::__private::returned::<
        Result<Receipt, Error>,
    >(
        ::idem_runtime::__private::finish::<
            Result<Receipt, Error>,
        >(
                __idem_running,
                __idem_result,
                |__idem_error| match __idem_error {
                    Error::Declined | Error::Expired => {
                        ::idem_runtime::__private::ErrorKind::Terminal
                    }
                    Error::Http(status) if *status == 503 => {
                        ::idem_runtime::__private::ErrorKind::Transient
                    }
                    #[allow(unreachable_patterns)]
                    _ => ::idem_runtime::__private::ErrorKind::Unknown,
                },
            )
            .await,
    )
}
