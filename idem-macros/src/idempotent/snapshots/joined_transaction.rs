//! Expansion that the test of this name in `snapshots.rs` checks.

async fn add(
    idem: &Idem<PostgresStore>,
    tx: &mut PgConnection,
    key: &str,
) -> Result<u64, Error> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::transactions_of_handle(&idem);
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::free_function(
        __idem_private::Call::new(
            ::core::concat!(::core::module_path!(), "::", "add"),
            __idem_private::usable_as_key(&key),
            &__idem_private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                    __idem_private::Encoder::map(__encoder, 0usize);
                }
            }),
            __idem_private::Duration::from_secs(86400u64),
        ),
        ::core::concat!(::core::module_path!(), "::", "add"),
        {
            #[allow(unused_imports)]
            use __idem_private::not_free as add;
            {
                #[allow(unused_imports)]
                use self::*;
                let _ = add;
            }
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match __idem_private::join_transaction::<
        Result<u64, Error>,
        _,
        _,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <Result<u64, Error> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <Result<u64, Error> as __idem_private::Returns>::Err,
            >(),
            &mut *tx,
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<u64, Error>>(__idem_answer);
        }
    };
    let __idem_result: Result<u64, Error> = {
        let (__idem_driver, tx) = __idem_running.parts();
        __idem_private::drive_transaction::<
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
                    #[allow(clippy::shadow_same)]
                    let tx = tx;
                    { insert(tx, key).await }
                },
            )
            .await
    };
    __idem_private::returned::<
        Result<u64, Error>,
    >(
        __idem_private::finish_transaction::<
            Result<u64, Error>,
            _,
        >(__idem_running, __idem_result, |_| __idem_private::Finality::Transient)
            .await,
    )
}
