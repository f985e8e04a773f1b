; The Windows setup program (build.py packs it). Per user, no administrator, no network.
;
;   setup.exe /S [/D=FOLDER]                  silently; /D comes last, with quotes or without
;   "Uninstall MTP Launcher.exe" /S [/SETTINGS=remove] [/MODELS=remove]
;
; Exit codes: 0 done, 1 cancelled, 2 broken off, 3 a running copy does not end, 4 no room, 5 a folder that cannot be
; used, 6 this Windows is too old. Why it ended is also in %TEMP%\mtp-launcher-setup.log, unless it is 0 or 1.
;
; The new version is unpacked beside the old one, and takes its place only when it is whole: whatever breaks off in
; between (power, disk, a kill), the old version still starts, and running setup again finishes the job.
Unicode true
Target amd64-unicode
SetCompressor /SOLID ${COMPRESSOR}

!define APP "MTP Launcher"
!define OWN_KEY "Software\${APP}"
!define UNINSTALL_KEY "Software\Microsoft\Windows\CurrentVersion\Uninstall\${APP}"
!define RUN_KEY "Software\Microsoft\Windows\CurrentVersion\Run" ; launcher/app/autostart.py
!define RUN_VALUE "MTP Launcher"
!define UNINSTALLER "Uninstall ${APP}.exe"                   ; launcher/base/running_mark.py
!define DATA "$LOCALAPPDATA\mtp-launcher"                       ; launcher/base/paths.py
!define LOG "$TEMP\mtp-launcher-setup.log"
!define RUNNING "Local\MTP Launcher"                            ; launcher/base/running_mark.py: a mutex
!define END "Local\MTP Launcher: end"                           ; and an event
!define APP_ID "MTPLauncher.MTPLauncher"
!define CLASSES "Software\Classes"
!define FILE_TYPE "MTPLauncher.gguf"
!define OLDEST_BUILD 17763                                      ; Windows 10 1809, what Qt 6.11 asks for
!define PATIENCE 120                                            ; quarters of a second
!define SPARE_KB 20480

Name "${APP}"
BrandingText "${APP} ${VERSION}"
OutFile "${OUTPUT}"
RequestExecutionLevel user
ManifestDPIAware true
ManifestSupportedOS Win10
InstallDir "$LOCALAPPDATA\Programs\${APP}"
InstallDirRegKey HKCU "${OWN_KEY}" "Folder"
AllowSkipFiles off
CRCCheck force
SetOverwrite on
SetDateSave off ; two checkouts have the same files at two times

!include MUI2.nsh
!include LogicLib.nsh
!include WinVer.nsh
!include FileFunc.nsh
!include nsDialogs.nsh
!include Win\COM.nsh
!include Win\Propkey.nsh

!ifdef SIGN
!finalize '${SIGN} "%1"' = 0
!uninstfinalize '${SIGN} "%1"' = 0
!endif

VIProductVersion "${NUMBERS}"
VIAddVersionKey "ProductName" "${APP}"
VIAddVersionKey "ProductVersion" "${VERSION}"
VIAddVersionKey "FileVersion" "${VERSION}"
VIAddVersionKey "FileDescription" "${APP} ${VERSION} setup"
VIAddVersionKey "LegalCopyright" "MIT licence"

Var Upgrading
Var KeepSettings
Var KeepSettingsBox
Var KeepModels
Var KeepModelsBox
Var Locks
Var Failed
Var Made

!define MUI_ICON "mtp-launcher.ico"
!define MUI_UNICON "mtp-launcher.ico"
!define MUI_WELCOMEFINISHPAGE_BITMAP "side.bmp"
!define MUI_ABORTWARNING
!define MUI_DIRECTORYPAGE_TEXT_TOP "$(WHERE)"
!define MUI_PAGE_CUSTOMFUNCTION_PRE SkipWhenUpgrading
!insertmacro MUI_PAGE_DIRECTORY
!insertmacro MUI_PAGE_INSTFILES
!define MUI_FINISHPAGE_TITLE "$(READY)"
!define MUI_FINISHPAGE_TEXT "$(READY_TEXT)"
!define MUI_FINISHPAGE_RUN
!define MUI_FINISHPAGE_RUN_TEXT "$(START_IT)"
!define MUI_FINISHPAGE_RUN_FUNCTION StartIt
!insertmacro MUI_PAGE_FINISH
UninstPage custom un.AskWhatStays un.KeepAnswer
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"
!insertmacro MUI_LANGUAGE "SimpChinese"
!include words.nsh

; ---------------------------------------------------------------------------------------- what both programs need

; Says why it cannot go on, to the user and to the log, and ends.  Fail CODE TEXT
!macro Fail Code Text
  StrCpy $0 `${Text}`
  StrCpy $1 ${Code}
  Call ${un}Fail
!macroend
!define Fail "!insertmacro Fail"

!macro Shared Prefix
!define un "${Prefix}"

Function ${un}WriteLog
  ClearErrors
  FileOpen $2 "${LOG}" w
  ${IfNot} ${Errors}
    FileWriteUTF16LE /BOM $2 "${APP} ${VERSION}: $0$\r$\n"
    FileClose $2
  ${EndIf}
FunctionEnd

Function ${un}Fail
  StrCpy $Failed 1
  Call ${un}WriteLog
  DetailPrint "$0"
  MessageBox MB_OK|MB_ICONSTOP "$0" /SD IDOK
  SetErrorLevel $1
  Abort "$0"
FunctionEnd

; Asks every running copy of this user's to end, as Ctrl-C does, and waits until none is left.
Function ${un}StopRunning
  Push $3
  System::Call 'kernel32::OpenMutexW(i 0x100000, i 0, w "${RUNNING}") p .r3'
  ${If} $3 P<> 0
    System::Call 'kernel32::CloseHandle(p r3)'
    MessageBox MB_OKCANCEL|MB_ICONINFORMATION "$(RUNS)" /SD IDOK IDOK go_on
    StrCpy $Failed 1 ; which .onInstFailed takes as said
    SetErrorLevel 1
    Abort "$(CANCELLED)"
  go_on:
  again:
    DetailPrint "$(STOPPING)"
    System::Call 'kernel32::OpenEventW(i 0x2, i 0, w "${END}") p .r3'
    ${If} $3 P<> 0
      System::Call 'kernel32::SetEvent(p r3)'
      System::Call 'kernel32::CloseHandle(p r3)'
    ${EndIf}
    StrCpy $4 0
    ${Do}
      System::Call 'kernel32::OpenMutexW(i 0x100000, i 0, w "${RUNNING}") p .r3'
      ${If} $3 P= 0
        ${ExitDo}
      ${EndIf}
      System::Call 'kernel32::CloseHandle(p r3)'
      ${If} $4 >= ${PATIENCE}
        MessageBox MB_RETRYCANCEL|MB_ICONEXCLAMATION "$(RUNS_ON)" /SD IDCANCEL IDRETRY again
        ${Fail} 3 "$(RUNS_ON)"
      ${EndIf}
      IntOp $4 $4 + 1
      Sleep 250
    ${Loop}
  ${EndIf}
  Pop $3
FunctionEnd

; One of them at a time: two would unpack into the same folder.
Function ${un}BeAlone
  System::Call 'kernel32::CreateMutexW(p 0, i 0, w "Local\MTP Launcher: setup") p .r0 ?e'
  Pop $1
  ${If} $1 = 183 ; ERROR_ALREADY_EXISTS
    ${Fail} 2 "$(TWICE)"
  ${EndIf}
FunctionEnd

; Removes $INSTDIR, and those folders above it that setup made for it, from $Made on, as far as they are empty.
Function ${un}RemoveFolders
  RMDir "$INSTDIR"
  StrCpy $0 $INSTDIR
  StrLen $1 $Made
  ${Do}
    ${GetParent} $0 $0
    StrCpy $2 $0 $1
    ${If} $Made == ""
    ${OrIf} $2 != $Made
      ${ExitDo}
    ${EndIf}
    RMDir "$0"
  ${Loop}
FunctionEnd

!undef un
!macroend

!insertmacro Shared ""
!insertmacro Shared "un."

; ------------------------------------------------------------------------------------------------------- install

!define un ""

Function .onInit
  ${IfNot} ${AtLeastBuild} ${OLDEST_BUILD}
    ${Fail} 6 "$(TOO_OLD)"
  ${EndIf}
  Call BeAlone
  Call CheckWish
  StrCpy $Upgrading 0
  ${If} ${FileExists} "$INSTDIR\${UNINSTALLER}"
    StrCpy $Upgrading 1
  ${EndIf}
FunctionEnd

; NSIS takes what follows ` /D=` as the folder, quotes and all, and nothing of `"/D=C:\my folder"`, which PowerShell makes of
; a word with spaces: what is in quotes is read here. NSIS also takes the usual folder when that of /D cannot be one; then
; this ends with an error.
Function CheckWish
  System::Call 'kernel32::GetCommandLineW() w .r0'
  StrLen $1 $0
  ${For} $2 0 $1
    StrCpy $3 $0 4 $2
    ${If} $3 == ' /D='
    ${OrIf} $3 == '"/D='
      StrCpy $3 $3 1
      IntOp $2 $2 + 4
      StrCpy $0 $0 "" $2
      StrCpy $1 $0 1
      ${If} $1 == '"'
        StrCpy $3 '"'
        StrCpy $0 $0 "" 1
      ${EndIf}
      ${If} $3 == '"'
        Call TakeQuoted
      ${EndIf}
      StrCpy $1 $0 1 -1
      ${If} $1 == "\"
        StrCpy $0 $0 -1
      ${EndIf}
      ${If} $0 != $INSTDIR
        StrCpy $INSTDIR $0
        ${Fail} 5 "$(NOT_WRITABLE)"
      ${EndIf}
      Return
    ${EndIf}
  ${Next}
FunctionEnd

; Cuts $0 at its first quote, and takes it as the folder when it names a disk or a server.
Function TakeQuoted
  StrLen $1 $0
  ${For} $2 0 $1
    StrCpy $3 $0 1 $2
    ${If} $3 == '"'
      StrCpy $0 $0 $2
      ${ExitFor}
    ${EndIf}
  ${Next}
  StrCpy $1 $0 1 -1
  ${If} $1 == "\"
    StrCpy $0 $0 -1
  ${EndIf}
  StrCpy $1 $0 2 1
  StrCpy $2 $0 2
  ${If} $1 == ":\"
  ${OrIf} $2 == "\\"
    StrCpy $INSTDIR $0
  ${EndIf}
FunctionEnd

Function SkipWhenUpgrading
  ${If} $Upgrading = 1
    Abort
  ${EndIf}
FunctionEnd

; A folder that holds other things is not ours to write into, and later to empty.
Function CheckFolder
  ${IfNot} ${FileExists} "$INSTDIR\app\mtp-launcher.cmd"
  ${AndIfNot} ${FileExists} "$INSTDIR\app.old\mtp-launcher.cmd"
  ${AndIfNot} ${FileExists} "$INSTDIR\app.new\*.*"
    FindFirst $0 $1 "$INSTDIR\*"
    ${Do}
      ${If} $1 == ""
        ${ExitDo}
      ${ElseIf} $1 != "."
      ${AndIf} $1 != ".."
        FindClose $0
        ${Fail} 5 "$(NOT_EMPTY)"
      ${EndIf}
      FindNext $0 $1
    ${Loop}
    FindClose $0
  ${EndIf}
  Call RestoreOld
  RMDir /r "$INSTDIR\app.new"
  RMDir /r "$INSTDIR\app.old"
  Call FindMade
  ClearErrors
  CreateDirectory "$INSTDIR\app.new" ; what tells this folder from others', should setup break off now
  ${If} ${Errors}
    ${Fail} 5 "$(NOT_WRITABLE)"
  ${EndIf}
FunctionEnd

; Which folder setup is about to make: the topmost that is not there yet. An upgrade knows it from the first time.
Function FindMade
  StrCpy $Made ""
  ${If} ${FileExists} "$INSTDIR\*.*"
    ReadRegStr $0 HKCU "${OWN_KEY}" "Folder"
    ${If} $0 == $INSTDIR
      ReadRegStr $Made HKCU "${OWN_KEY}" "Made"
    ${EndIf}
    Return
  ${EndIf}
  StrCpy $0 $INSTDIR
  ${Do}
    StrCpy $Made $0
    ${GetParent} $0 $0
    StrLen $1 $0
    ${If} $1 < 4 ; a disk
    ${OrIf} ${FileExists} "$0\*.*"
      ${ExitDo}
    ${EndIf}
  ${Loop}
FunctionEnd

Function CheckRoom
  StrCpy $1 0
  System::Call 'kernel32::GetDiskFreeSpaceExW(w "$INSTDIR", *l .r1, *l, *l) i .r0'
  ${If} $0 <> 0
    System::Int64Op $1 / 1024
    Pop $1
    IntOp $2 ${NEEDED_KB} + ${SPARE_KB}
    System::Int64Op $1 < $2
    Pop $0
    ${If} $0 = 1
      System::Int64Op $1 / 1024
      Pop $R0
      IntOp $R1 $2 / 1024
      ${Fail} 4 "$(NO_ROOM)"
    ${EndIf}
  ${EndIf}
FunctionEnd

; After a setup that broke off between the two renames the old version is still there, under another name.
Function RestoreOld
  ${IfNot} ${FileExists} "$INSTDIR\app\*.*"
  ${AndIf} ${FileExists} "$INSTDIR\app.old\*.*"
    Rename "$INSTDIR\app.old" "$INSTDIR\app"
  ${EndIf}
FunctionEnd

; Virus scanners hold what is new for a moment, and a program that has ended its files.
Function TakePlace
  StrCpy $Locks 0
  ${Do}
    ClearErrors
    ${If} ${FileExists} "$INSTDIR\app\*.*"
      Rename "$INSTDIR\app" "$INSTDIR\app.old"
    ${EndIf}
    ${IfNot} ${Errors}
      Rename "$INSTDIR\app.new" "$INSTDIR\app"
      ${IfNot} ${Errors}
        ${ExitDo}
      ${EndIf}
    ${EndIf}
    ${If} $Locks >= ${PATIENCE}
      Call RestoreOld
      ${Fail} 3 "$(IN_USE)"
    ${EndIf}
    IntOp $Locks $Locks + 1
    Sleep 250
  ${Loop}
FunctionEnd

; The identity by which the taskbar knows the window, and pins this shortcut with it.
Function GiveIdentity
  !insertmacro ComHlpr_CreateInProcInstance ${CLSID_ShellLink} ${IID_IShellLink} r0 ""
  ${If} $0 P<> 0
    ${IUnknown::QueryInterface} $0 '("${IID_IPersistFile}",.r1)'
    ${If} $1 P<> 0
      ${IPersistFile::Load} $1 '("$SMPROGRAMS\${APP}.lnk", ${STGM_READWRITE})'
      ${IUnknown::QueryInterface} $0 '("${IID_IPropertyStore}",.r2)'
      ${If} $2 P<> 0
        System::Call '*${SYSSTRUCT_PROPERTYKEY}(${PKEY_AppUserModel_ID})p.r3'
        System::Call '*(&w64 "${APP_ID}")p.r4'
        System::Call '*${SYSSTRUCT_PROPVARIANT}(${VT_LPWSTR},,p r4)p.r5'
        ${IPropertyStore::SetValue} $2 '($3,$5)'
        ${IPropertyStore::Commit} $2 ""
        System::Free $3
        System::Free $4
        System::Free $5
        ${IUnknown::Release} $2 ""
        ${IPersistFile::Save} $1 '("$SMPROGRAMS\${APP}.lnk",1)'
      ${EndIf}
      ${IUnknown::Release} $1 ""
    ${EndIf}
    ${IUnknown::Release} $0 ""
  ${EndIf}
FunctionEnd

Function StartIt
  SetOutPath "$PROFILE"
  Exec '"$INSTDIR\app\pythonw.exe" -m launcher'
FunctionEnd

Section
  Delete "${LOG}"
  Call CheckFolder
  Call CheckRoom
  ClearErrors
  WriteUninstaller "$INSTDIR\${UNINSTALLER}"
  ${If} ${Errors}
    ${Fail} 5 "$(NOT_WRITABLE)"
  ${EndIf}
  ReadRegStr $0 HKCU "${OWN_KEY}" "Folder"
  ${IfNot} ${FileExists} "$INSTDIR\app\*.*"
  ${AndIfNot} ${FileExists} "$0\app\mtp-launcher.cmd" ; a copy elsewhere keeps its entry until this one is whole
    Call Register ; what breaks off now can be taken away in Apps & Features, too
  ${EndIf}
  DetailPrint "$(UNPACKING)"
  SetDetailsPrint none
  !include "${FILES}"
  SetDetailsPrint both
  SetOutPath "$INSTDIR"
  Call StopRunning
  Call TakePlace
  Call Register
  SetOutPath "$PROFILE"
  CreateShortcut "$SMPROGRAMS\${APP}.lnk" "$INSTDIR\app\pythonw.exe" "-m launcher" "$INSTDIR\app\mtp-launcher.ico" \
    0 SW_SHOWNORMAL "" "$(ABOUT)"
  CreateShortcut "$SMPROGRAMS\${APP} (command line).lnk" "$SYSDIR\cmd.exe" \
    '/K "set "PATH=$INSTDIR\app;%PATH%" & mtp-launcher --help"' "$INSTDIR\app\mtp-launcher.ico" 0 SW_SHOWNORMAL "" \
    "$(ABOUT_COMMAND_LINE)"
  SetOutPath "$INSTDIR"
  RMDir /r "$INSTDIR\app.old"
  Call GiveIdentity
  Call OfferFileType
SectionEnd

; "Open with" of a .gguf file names the program. Which one a double click opens stays the user's choice.
Function OfferFileType
  WriteRegStr HKCU "${CLASSES}\${FILE_TYPE}" "" "$(MODEL_FILE)"
  WriteRegStr HKCU "${CLASSES}\${FILE_TYPE}\Application" "ApplicationName" "${APP}"
  WriteRegStr HKCU "${CLASSES}\${FILE_TYPE}\Application" "ApplicationIcon" "$INSTDIR\app\mtp-launcher.ico"
  WriteRegStr HKCU "${CLASSES}\${FILE_TYPE}\Application" "AppUserModelID" "${APP_ID}"
  WriteRegStr HKCU "${CLASSES}\${FILE_TYPE}\DefaultIcon" "" "$INSTDIR\app\mtp-launcher.ico"
  WriteRegStr HKCU "${CLASSES}\${FILE_TYPE}\shell\open\command" "" '"$INSTDIR\app\pythonw.exe" -m launcher gui "%1"'
  WriteRegStr HKCU "${CLASSES}\.gguf\OpenWithProgids" "${FILE_TYPE}" ""
  ${RefreshShellIcons}
FunctionEnd

Function Register
  WriteRegStr HKCU "${OWN_KEY}" "Folder" "$INSTDIR"
  WriteRegStr HKCU "${OWN_KEY}" "Made" "$Made"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayName" "${APP}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayIcon" "$INSTDIR\app\mtp-launcher.ico"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "Publisher" "${APP}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "InstallLocation" "$INSTDIR"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "UninstallString" '"$INSTDIR\${UNINSTALLER}"'
  WriteRegStr HKCU "${UNINSTALL_KEY}" "QuietUninstallString" '"$INSTDIR\${UNINSTALLER}" /S'
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "EstimatedSize" ${NEEDED_KB}
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "NoModify" 1
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "NoRepair" 1
FunctionEnd

; The room that a broken-off setup took is given back; a version that was there before stays as it was.
Function .onInstFailed
  ${If} $Failed = 1
  ${AndIfNot} ${FileExists} "$INSTDIR\app.new\*.*"
    Return ; nothing was begun, and the folder may not be ours
  ${EndIf}
  ${If} $Failed <> 1
    StrCpy $0 "$(BROKE_OFF)"
    Call WriteLog
    SetErrorLevel 2
  ${EndIf}
  SetOutPath "$TEMP"
  RMDir /r "$INSTDIR\app.new"
  ${IfNot} ${FileExists} "$INSTDIR\app\*.*"
    Delete "$INSTDIR\${UNINSTALLER}"
    ReadRegStr $0 HKCU "${OWN_KEY}" "Folder"
    ${If} $0 == $INSTDIR ; else they are another copy's
      DeleteRegKey HKCU "${UNINSTALL_KEY}"
      DeleteRegKey HKCU "${OWN_KEY}"
    ${EndIf}
  ${EndIf}
  Call RemoveFolders
FunctionEnd

!undef un

!include uninstall.nsh
