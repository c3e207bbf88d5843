// The answer for a boundary that was measured here or published.

// The boundary, its curve, and the predictions of every predictor.
async function observedParts(source, place) {
  const row = { ...source.row(place), id: source.id(place) };
  const [latency, predictions, composition, sensitivity] = await Promise.all(
    ['latency', 'predictions', 'composition', 'sensitivity'].map(table),
  );
  const setting = { platform: row.platform, setting_key: row.setting_key };
  const take = { ...setting, stream: row.stream, take: row.take, plan8: row.plan8 };
  const compositionRows = composition.where({ ...setting, stream: row.stream, epsilon: row.epsilon });
  const sensitivityRows = sensitivity.where(take);
  return [
    headline(
      row.id,
      boundaryText(row),
      `interval ${interval(row.n_low, row.n_high) || 'unknown'}; ${row.verdict}; from N = ${row.baseline}`,
      row.origin,
      row.verdict === 'undecided' ? 'big undecided' : 'big',
    ),
    compositionRows.length && composition.at('measured_limiter', compositionRows[0])
      ? make(
          'p',
          null,
          'Limited by ',
          provenanceLink(composition.id(compositionRows[0]), composition.at('measured_limiter', compositionRows[0])),
          ': its time grew most up to there.',
        )
      : null,
    sensitivityRows.length
      ? make(
          'p',
          null,
          provenanceLink(
            sensitivity.id(sensitivityRows[0]),
            sensitivity.at('robust', sensitivityRows[0]) ? 'Robust' : 'Fragile',
          ),
          `, ${sensitivity.at('verdict', sensitivityRows[0])} over tolerances: ${sensitivity.at('why', sensitivityRows[0])}`,
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
      compositionRows,
    ),
  ];
}

function latencyParts(latency, places, row) {
  if (!places.length)
    return make(
      'p',
      { class: 'note' },
      'No curve is known: only the boundary was published.',
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
    .sort((left, right) => left.n - right.n);
  const rows = points.map((point) => [
    String(point.n),
    provenanceLink(point.id, latencyText(latency.at('latency_us', point.place))),
    provenanceLink(point.id, point.ratio.toFixed(3)),
    `${point.low.toFixed(3)} to ${point.high.toFixed(3)}`,
    provenanceLink(point.id, valueText(latency.at('rounds', point.place))),
  ]);
  return make(
    'div',
    null,
    plotElement({
      points: points.filter(({ n }) => n >= row.baseline),
      epsilon: row.epsilon,
      baseline: row.baseline,
      boundary: { n: row.n_max, text: boundaryText(row), low: row.n_low, high: row.n_high },
    }),
    foldedPart(
      'T(N) as a table',
      grid(['N', 'T(N), µs', `T(N)/T(${row.baseline})`, '95 % interval', 'rounds'], rows),
    ),
  );
}

// The predictions of a setting, and those that compose its modules where these were scored.
function predictorGrid(predictions, composition, places, compositionRows) {
  const rows = places.map((place) => {
    const row = predictions.row(place);
    return [
      predictorName(row),
      provenanceLink(predictions.id(place), amount(row)),
      interval(row.low, row.high) || '-',
      limitText(row) || '-',
      row.evidence || row.refusal || '-',
    ];
  });
  const shownPredictors = new Set(places.map((place) => predictorName(predictions.row(place))));
  for (const place of compositionRows) {
    const row = composition.row(place);
    if (shownPredictors.has(predictorName(row))) continue;
    rows.push([
      predictorName(row),
      provenanceLink(composition.id(place), amount({ ...row, n_max: row.predicted })),
      interval(row.low, row.high) || '-',
      row.limiter || '-',
      row.refusal || '-',
    ]);
  }
  return rows.length
    ? grid(['predictor', 'N_max', 'interval', 'limited by', 'rule, or reason of refusal'], rows)
    : make('p', { class: 'note' }, 'No predictor was run for this setting.');
}
