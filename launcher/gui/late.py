"""Modules that the window needs only for its work, as LateModule: no page is built later because of them.

A lambda that uses one of them, as in `bridge.run(lambda: library.remove_model(local))`, imports it on a worker thread.
"""

from typing import TYPE_CHECKING

from launcher.base.late import LateModule

if TYPE_CHECKING:
    from launcher.agents import check as agent_checks
    from launcher.agents import terminal as agent_terminal
    from launcher.app import agent_session as agent_session
    from launcher.app import bug_report as bug_report
    from launcher.app.first import first_checks as first_checks
    from launcher.app.first import first_start as first_start
    from launcher.app.measuring import engine_comparison as engine_comparison
    from launcher.app.measuring import saved_tunes as saved_tunes
    from launcher.app.measuring import speed_limit as speed_limits
    from launcher.app.measuring import tuner as measured_tunes
    from launcher.app.measuring import tuner_space as tuner_space
    from launcher.app.models import downloads as downloads
    from launcher.app.planning import engine_answer as engine_answer
    from launcher.app.planning import model_source as model_source
    from launcher.app.planning import model_stops as model_stops
    from launcher.app.planning import named_plans as named_plans
    from launcher.app.planning import preview as previews
    from launcher.app.planning import start_settings as start_settings
    from launcher.app.planning import tuned_match as tuned_match
    from launcher.app.serving import borrowed_session as borrowed_session
    from launcher.app.serving import failed_requests as failed_requests
    from launcher.app.serving import pause_estimate as pause_estimate
    from launcher.app.serving import remote_session as remote_session
    from launcher.app.serving import running_servers as running_servers
    from launcher.app.serving import server_process as server_process
    from launcher.app.serving import session as server_session
    from launcher.app.serving import use_counting as use_counting
    from launcher.app.serving import verbs as verbs
    from launcher.engine import demo as engine_demo
    from launcher.engine import settings as engine_settings
    from launcher.engine.builds import flags as engine_flags
    from launcher.engine.diagnosis import actions as fix_actions
    from launcher.engine.diagnosis import explain as log_diagnosis
    from launcher.engine.diagnosis import fix_command as fix_commands
    from launcher.engine.diagnosis import log_reading as log_reading
    from launcher.engine.server import client as engine_client
    from launcher.engine.server import last_start as last_start
    from launcher.engine.server import registry as registry
    from launcher.fetch import jobs as download_jobs
    from launcher.fetch import queue_runner as queue_runner
    from launcher.gui.plots import chart as chart_drawing
    from launcher.gui.plots import export as plot_export
    from launcher.gui.plots import overlay as overlays
    from launcher.gui.start import planning as start_planning
    from launcher.gui.tune import trial_views as trial_views
    from launcher.models import added_places as added_places
    from launcher.models import catalogue_load as catalogue_load
    from launcher.models import hub_model as hub_model
    from launcher.models import leftovers as leftovers
    from launcher.models import library as library
    from launcher.models import locate as model_search
    from launcher.tuning import agent_tasks as agent_tasks
    from launcher.tuning import goal as tune_goals
    from launcher.tuning import history as tune_history
    from launcher.tuning import report_export as report_export
    from launcher.tuning import tuner as tuner
    from launcher.tuning import workloads as workloads
    from launcher.updates import check as update_check
    from launcher.updates import install as update_install
else:
    agent_checks = LateModule("launcher.agents.check")
    agent_terminal = LateModule("launcher.agents.terminal")
    agent_session = LateModule("launcher.app.agent_session")
    bug_report = LateModule("launcher.app.bug_report")
    first_checks = LateModule("launcher.app.first.first_checks")
    first_start = LateModule("launcher.app.first.first_start")
    engine_comparison = LateModule("launcher.app.measuring.engine_comparison")
    saved_tunes = LateModule("launcher.app.measuring.saved_tunes")
    speed_limits = LateModule("launcher.app.measuring.speed_limit")
    measured_tunes = LateModule("launcher.app.measuring.tuner")
    tuner_space = LateModule("launcher.app.measuring.tuner_space")
    downloads = LateModule("launcher.app.models.downloads")
    engine_answer = LateModule("launcher.app.planning.engine_answer")
    model_source = LateModule("launcher.app.planning.model_source")
    model_stops = LateModule("launcher.app.planning.model_stops")
    named_plans = LateModule("launcher.app.planning.named_plans")
    previews = LateModule("launcher.app.planning.preview")
    start_settings = LateModule("launcher.app.planning.start_settings")
    tuned_match = LateModule("launcher.app.planning.tuned_match")
    borrowed_session = LateModule("launcher.app.serving.borrowed_session")
    failed_requests = LateModule("launcher.app.serving.failed_requests")
    pause_estimate = LateModule("launcher.app.serving.pause_estimate")
    remote_session = LateModule("launcher.app.serving.remote_session")
    running_servers = LateModule("launcher.app.serving.running_servers")
    server_process = LateModule("launcher.app.serving.server_process")
    server_session = LateModule("launcher.app.serving.session")
    use_counting = LateModule("launcher.app.serving.use_counting")
    verbs = LateModule("launcher.app.serving.verbs")
    engine_flags = LateModule("launcher.engine.builds.flags")
    engine_demo = LateModule("launcher.engine.demo")
    fix_actions = LateModule("launcher.engine.diagnosis.actions")
    log_diagnosis = LateModule("launcher.engine.diagnosis.explain")
    fix_commands = LateModule("launcher.engine.diagnosis.fix_command")
    log_reading = LateModule("launcher.engine.diagnosis.log_reading")
    engine_client = LateModule("launcher.engine.server.client")
    last_start = LateModule("launcher.engine.server.last_start")
    registry = LateModule("launcher.engine.server.registry")
    engine_settings = LateModule("launcher.engine.settings")
    download_jobs = LateModule("launcher.fetch.jobs")
    queue_runner = LateModule("launcher.fetch.queue_runner")
    chart_drawing = LateModule("launcher.gui.plots.chart")
    plot_export = LateModule("launcher.gui.plots.export")
    overlays = LateModule("launcher.gui.plots.overlay")
    start_planning = LateModule("launcher.gui.start.planning")
    trial_views = LateModule("launcher.gui.tune.trial_views")
    added_places = LateModule("launcher.models.added_places")
    catalogue_load = LateModule("launcher.models.catalogue_load")
    hub_model = LateModule("launcher.models.hub_model")
    leftovers = LateModule("launcher.models.leftovers")
    library = LateModule("launcher.models.library")
    model_search = LateModule("launcher.models.locate")
    agent_tasks = LateModule("launcher.tuning.agent_tasks")
    tune_goals = LateModule("launcher.tuning.goal")
    tune_history = LateModule("launcher.tuning.history")
    report_export = LateModule("launcher.tuning.report_export")
    tuner = LateModule("launcher.tuning.tuner")
    workloads = LateModule("launcher.tuning.workloads")
    update_check = LateModule("launcher.updates.check")
    update_install = LateModule("launcher.updates.install")
