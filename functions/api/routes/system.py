"""The process itself."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from functions.api.answers import Health, answer

router = APIRouter(tags=["system"])


@router.get("/healthz", summary="Tell whether the process answers", response_model=Health)
async def healthz(request: Request) -> Response:
    """Answer without touching any store."""
    return answer({"ok": True, "version": request.app.version})
