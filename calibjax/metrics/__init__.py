"""Metrics, thresholds and frontiers as pure JAX functions; needs nothing else of the package."""

from calibjax.metrics.bootstrap import (
    BootstrapDetails,
    Interval,
    bootstrap,
    bootstrap_details,
    paired_difference,
    percentile_interval,
)
from calibjax.metrics.calibration import (
    CalibrationDetails,
    NullReference,
    ece_null_reference,
    expected_calibration_error,
    expected_calibration_error_details,
)
from calibjax.metrics.discrimination import AurocDetails, auroc, auroc_details
from calibjax.metrics.proper import (
    BrierDecomposition,
    MeanDetails,
    SkillDetails,
    accuracy,
    accuracy_details,
    brier_decomposition,
    brier_decomposition_details,
    brier_score,
    brier_score_details,
    brier_skill,
    brier_skill_details,
    log_loss,
    log_loss_details,
    log_loss_skill,
    log_loss_skill_details,
)
from calibjax.metrics.selective import (
    AccuracyCoverageDetails,
    ConfidentWrong,
    CoverageDetails,
    CurveDetails,
    accuracy_at_coverage,
    accuracy_at_coverage_details,
    accuracy_coverage_curve,
    accuracy_coverage_curve_details,
    area_under_accuracy_coverage,
    area_under_accuracy_coverage_details,
    confident_wrong_answer_rate,
    confident_wrong_answer_rate_details,
    cwar_at_coverage,
    cwar_at_coverage_details,
    normalized_accuracy_coverage_gain,
    normalized_accuracy_coverage_gain_details,
)
