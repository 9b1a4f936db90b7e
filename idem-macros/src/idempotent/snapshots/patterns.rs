//! Expansion that the test of this name in `snapshots.rs` checks.

async fn order<const N: usize>(
    __idem_arg0: (String, u64),
    __idem_arg1: Point,
    mut count: u64,
    __idem_arg3: [u8; N],
) -> Result<u64, Error>
where
    [u8; N]: Fingerprint,
{
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let (__idem_handle, __idem_call) = {
        #[allow(unused_variables, clippy::pattern_type_mismatch)]
        let (id, _) = &__idem_arg0;
        (
            __idem_private::default_handle(),
            __idem_private::Call::new(
                    "orders.place",
                    __idem_private::usable_as_key(&id),
                    &__idem_private::from_fn(|__idem_encoder| {
                        {
                            let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                            __idem_private::Encoder::map(
                                __encoder,
                                0usize
                                    + __idem_private::Encoder::present(
                                        __idem_private::usable_as_request(&__idem_arg0),
                                    )
                                    + __idem_private::Encoder::present(
                                        __idem_private::usable_as_request(&__idem_arg1),
                                    )
                                    + __idem_private::Encoder::present(
                                        __idem_private::usable_as_request(&__idem_arg3),
                                    )
                                    + __idem_private::Encoder::present(
                                        __idem_private::usable_as_request(&count),
                                    ),
                            );
                            __idem_private::Encoder::entry(
                                __encoder,
                                b"a0",
                                __idem_private::usable_as_request(&__idem_arg0),
                            );
                            __idem_private::Encoder::entry(
                                __encoder,
                                b"a1",
                                __idem_private::usable_as_request(&__idem_arg1),
                            );
                            __idem_private::Encoder::entry(
                                __encoder,
                                b"a3",
                                __idem_private::usable_as_request(&__idem_arg3),
                            );
                            __idem_private::Encoder::entry(
                                __encoder,
                                b"ecount",
                                __idem_private::usable_as_request(&count),
                            );
                        }
                    }),
                    __idem_private::Duration::from_secs(86400u64),
                )
                .named_function({
                    static __IDEM_FUNCTION: __idem_private::NamedFunction = __idem_private::NamedFunction::new(
                        ::core::concat!(::core::module_path!(), "::", "order"),
                    );
                    &__IDEM_FUNCTION
                }),
        )
    };
    let mut __idem_running = match __idem_private::enter::<
        Result<u64, Error>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <Result<u64, Error> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <Result<u64, Error> as __idem_private::Returns>::Err,
            >(),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<u64, Error>>(__idem_answer);
        }
    };
    let __idem_result: Result<u64, Error> = __idem_private::drive::<
        Result<u64, Error>,
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
                    let __idem_never: Result<u64, Error> = loop {};
                    return __idem_never;
                }
                #[allow(unused_variables)]
                let (mut id, _) = __idem_arg0;
                let Point { x, ref y } = __idem_arg1;
                {
                    id.push('!');
                    Ok(count + x + y)
                }
            },
        )
        .await;
    __idem_private::returned::<
        Result<u64, Error>,
    >(
        __idem_private::finish::<
            Result<u64, Error>,
        >(__idem_running, __idem_result, |_| __idem_private::Finality::Transient)
            .await,
    )
}
