//! Expansion that the test of this name in `snapshots.rs` checks.

async fn charge(key: String, amount: u64) -> Result<Receipt, Error> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::free_function(
        __idem_private::Call::new(
                ::core::concat!(::core::module_path!(), "::", "charge"),
                __idem_private::usable_as_key(&key),
                &__idem_private::from_fn(|__idem_encoder| {
                    {
                        let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                        __idem_private::Encoder::map(
                            __encoder,
                            0usize
                                + __idem_private::Encoder::present(
                                    __idem_private::usable_as_request(&amount),
                                ),
                        );
                        __idem_private::Encoder::entry(
                            __encoder,
                            b"famount",
                            __idem_private::usable_as_request(&amount),
                        );
                    }
                }),
                __idem_private::usable_as_duration(TTL),
            )
            .remember(__idem_private::Duration::from_secs(7776000u64))
            .lease(__idem_private::Duration::from_secs(90u64))
            .wait(__idem_private::Duration::from_secs(0u64))
            .deadline(Instant::now())
            .on_crash(__idem_private::OnCrash::Refuse)
            .run_on_store_error()
            .refuse_old_keys(__idem_private::usable_as_duration(SLACK)),
        ::core::concat!(::core::module_path!(), "::", "charge"),
        {
            #[allow(unused_imports)]
            use __idem_private::not_free as charge;
            {
                #[allow(unused_imports)]
                use self::*;
                let _ = charge;
            }
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match __idem_private::enter::<
        Result<Receipt, Error>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <Result<Receipt, Error> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <Result<Receipt, Error> as __idem_private::Returns>::Err,
            >()
                .with_stored(
                    __idem_private::stored_errors::<
                        <Result<Receipt, Error> as __idem_private::Returns>::Err,
                    >(),
                ),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<Receipt, Error>>(__idem_answer);
        }
    };
    let __idem_result: Result<Receipt, Error> = __idem_private::drive::<
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
    __idem_private::returned::<
        Result<Receipt, Error>,
    >(
        __idem_private::finish::<
            Result<Receipt, Error>,
        >(
                __idem_running,
                __idem_result,
                |__idem_error| match __idem_error {
                    Error::Declined | Error::Expired => __idem_private::Finality::Final,
                    Error::Http(status) if *status == 503 => {
                        __idem_private::Finality::Transient
                    }
                    #[allow(unreachable_patterns)]
                    _ => __idem_private::Finality::Unknown,
                },
            )
            .await,
    )
}
