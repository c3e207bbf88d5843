// An answer about a boundary that was measured here or published: its curve, and each predictor.

// A boundary that was measured here or published: its curve, and every predictor beside it.
async function observedParts(source, place) {
  const row = { ...source.row(place), id: source.id(place) };
  const [latency, predictions, composition, sensitivity] = await Promise.all(
    ['latency', 'predictions', 'composition', 'sensitivity'].map(table),
  );
  const setting = { platform: row.platform, setting_key: row.setting_key };
  const take = { ...setting, stream: row.stream, take: row.take, plan8: row.plan8 };
  const composed = composition.where({ ...setting, stream: row.stream, epsilon: row.epsilon });
  const judged = sensitivity.where(take);
  return [
    headline(
      row.id,
      reached(row),
      `interval ${interval(row.n_low, row.n_high) || 'not known'}; ${row.verdict}; from N = ${row.baseline}`,
      row.origin,
    ),
    composed.length && composition.at('measured_limiter', composed[0])
      ? make(
          'p',
          null,
          'Limited by ',
          opens(composition.id(composed[0]), composition.at('measured_limiter', composed[0])),
          ': it grew most up to there.',
        )
      : null,
    judged.length
      ? make(
          'p',
          null,
          opens(
            sensitivity.id(judged[0]),
            sensitivity.at('robust', judged[0]) ? 'Robust' : 'Fragile',
          ),
          `, ${sensitivity.at('verdict', judged[0])} over tolerances: ${sensitivity.at('why', judged[0])}`,
        )
      : null,
    latencyParts(latency, latency.where(take), row),
    make('h3', null, 'The boundary by each predictor'),
    predictorGrid(
      predictions,
      composition,
      predictions.where({
        ...setting,
        origin: row.origin,
        baseline: row.baseline,
        epsilon: row.epsilon,
      }),
      composed,
    ),
  ];
}

function latencyParts(latency, places, row) {
  if (!places.length)
    return make(
      'p',
      { class: 'note' },
      'No curve is known: what was published is the boundary alone.',
    );
  const points = places
    .map((place) => ({
      n: latency.at('n', place),
      ratio: latency.at('ratio', place),
      low: latency.at('ratio_low', place),
      high: latency.at('ratio_high', place),
      place,
      id: latency.id(place),
    }))
    .sort((one, other) => one.n - other.n);
  const rows = points.map((each) => [
    String(each.n),
    opens(each.id, shown(latency.at('latency_us', each.place))),
    opens(each.id, each.ratio.toFixed(3)),
    `${each.low.toFixed(3)} to ${each.high.toFixed(3)}`,
    opens(each.id, shown(latency.at('rounds', each.place))),
  ]);
  return make(
    'div',
    null,
    plotted({
      points: points.filter(({ n }) => n >= row.baseline),
      epsilon: row.epsilon,
      baseline: row.baseline,
      boundary: { n: row.n_max, said: reached(row), low: row.n_low, high: row.n_high },
    }),
    folded(
      'T(N) as a table',
      grid(['N', 'T(N), µs', `T(N)/T(${row.baseline})`, '95 % interval', 'rounds'], rows),
    ),
  );
}

// Predictions of a setting; how modules compose is told where it was judged.
function predictorGrid(predictions, composition, places, composed) {
  const rows = places.map((place) => {
    const row = predictions.row(place);
    return [
      way(row),
      opens(predictions.id(place), amount(row)),
      interval(row.low, row.high) || '-',
      limits(row) || '-',
      row.evidence || row.refusal || '-',
    ];
  });
  const known = new Set(places.map((place) => way(predictions.row(place))));
  for (const place of composed) {
    const row = composition.row(place);
    if (known.has(way(row))) continue;
    rows.push([
      way(row),
      opens(composition.id(place), amount({ ...row, n_max: row.predicted })),
      interval(row.low, row.high) || '-',
      row.limiter || '-',
      row.refusal || '-',
    ]);
  }
  return rows.length
    ? grid(['predictor', 'N_max', 'interval', 'limited by', 'rule, or why it refuses'], rows)
    : make('p', { class: 'note' }, 'No predictor was asked.');
}
