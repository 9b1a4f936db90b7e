//! Expansion that the test of this name in `snapshots.rs` checks.

async fn mail(mailer: &Mailer, to: &str, (_, trace): (u8, Trace)) -> Result<(), Error> {
    use crate::idem::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::free_function(
        __idem_private::Call::by_fingerprint(
            ::core::concat!(::core::module_path!(), "::", "mail"),
            &__idem_private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                    __idem_private::Encoder::map(
                        __encoder,
                        0usize
                            + __idem_private::Encoder::present(
                                __idem_private::usable_as_request(&*to),
                            ),
                    );
                    __idem_private::Encoder::entry(
                        __encoder,
                        b"bto",
                        __idem_private::usable_as_request(&*to),
                    );
                }
            }),
            __idem_private::Duration::from_secs(86400u64),
        ),
        ::core::concat!(::core::module_path!(), "::", "mail"),
        {
            #[allow(unused_imports)]
            use __idem_private::not_free as mail;
            {
                #[allow(unused_imports)]
                use self::*;
                let _ = mail;
            }
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match __idem_private::enter::<
        Result<(), Error>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <Result<(), Error> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <Result<(), Error> as __idem_private::Returns>::Err,
            >(),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<(), Error>>(__idem_answer);
        }
    };
    let __idem_result: Result<(), Error> = __idem_private::drive::<
        Result<(), Error>,
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
                    let __idem_never: Result<(), Error> = loop {};
                    return __idem_never;
                }
                { mailer.send(to, trace).await }
            },
        )
        .await;
    __idem_private::returned::<
        Result<(), Error>,
    >(
        __idem_private::finish::<
            Result<(), Error>,
        >(__idem_running, __idem_result, |_| __idem_private::Finality::Transient)
            .await,
    )
}
