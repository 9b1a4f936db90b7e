//! Expansion that the test of this name in `snapshots.rs` checks.

async fn mail(mailer: &Mailer, to: &str, (_, trace): (u8, Trace)) -> Result<(), Error> {
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = crate::idem::__private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = crate::idem::__private::free_function(
        crate::idem::__private::Call::by_fingerprint(
            ::core::concat!(::core::module_path!(), "::", "mail"),
            &crate::idem::__private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut crate::idem::__private::Encoder = __idem_encoder;
                    crate::idem::__private::Encoder::map(
                        __encoder,
                        0usize
                            + crate::idem::__private::Encoder::present(
                                crate::idem::__private::argument(&*to),
                            ),
                    );
                    crate::idem::__private::Encoder::entry(
                        __encoder,
                        b"bto",
                        crate::idem::__private::argument(&*to),
                    );
                }
            }),
            crate::idem::__private::Duration::from_secs(86400u64),
        ),
        ::core::concat!(::core::module_path!(), "::", "mail"),
        {
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match crate::idem::__private::enter::<
        Result<(), Error>,
    >(
            __idem_handle,
            __idem_call,
            crate::idem::__private::stored_values::<
                <Result<(), Error> as crate::idem::__private::Returns>::Ok,
            >(),
            crate::idem::__private::call_errors::<
                <Result<(), Error> as crate::idem::__private::Returns>::Err,
            >(),
        )
        .await
    {
        crate::idem::__private::Result::Ok(__idem_running) => __idem_running,
        crate::idem::__private::Result::Err(__idem_answer) => {
            return crate::idem::__private::returned::<Result<(), Error>>(__idem_answer);
        }
    };
    let __idem_result: Result<(), Error> = crate::idem::__private::drive::<
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
    crate::idem::__private::returned::<
        Result<(), Error>,
    >(
        crate::idem::__private::finish::<
            Result<(), Error>,
        >(
                __idem_running,
                __idem_result,
                |_| crate::idem::__private::ErrorKind::Transient,
            )
            .await,
    )
}
