//! Expansion that the test of this name in `snapshots.rs` checks.

async fn charge(
    idem: &Idem,
    key: &str,
    __idem_arg2: (u64, Bank),
) -> Result<Receipt, Error> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::engine_of_handle(&idem);
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
                                    __idem_private::usable_as_request(&__idem_arg2),
                                ),
                        );
                        __idem_private::Encoder::entry(
                            __encoder,
                            b"a2",
                            __idem_private::usable_as_request(&__idem_arg2),
                        );
                    }
                }),
                __idem_private::Duration::from_secs(86400u64),
            )
            .on_crash(__idem_private::OnCrash::Refuse),
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
            >(),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<Receipt, Error>>(__idem_answer);
        }
    };
    let __idem_body = {
        #[allow(unused_variables)]
        let attempt = __idem_running.attempt();
        async move {
            #[allow(unreachable_code, clippy::all, clippy::pedantic, clippy::nursery)]
            if false {
                let __idem_never: Result<Receipt, Error> = loop {};
                return __idem_never;
            }
            let (amount, bank) = __idem_arg2;
            { bank.pay(amount, attempt.downstream_key("bank")).await }
        }
    };
    let attempt = __idem_running.attempt();
    __idem_private::returned::<
        Result<Receipt, Error>,
    >(
        __idem_private::finish_detached::<
            Result<Receipt, Error>,
        >(
                __idem_running,
                __idem_body,
                move |__idem_error| match __idem_error {
                    Error::Http(status) if attempt.number() == 1 => {
                        __idem_private::Finality::Transient
                    }
                    #[allow(unreachable_patterns)]
                    _ => __idem_private::Finality::Unknown,
                },
            )
            .await,
    )
}
